"""Who may do what: roles in an owner, and the rights that they give."""
