"""Environments of Wander as those of other libraries; each module needs its library and no other."""
