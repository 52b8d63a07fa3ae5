"""The pages on which people see to their account, their owners and their environments."""
