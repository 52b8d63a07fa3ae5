"""The pages for managing an account, its owners and its environments."""
