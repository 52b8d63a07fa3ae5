"""The rubrics of the classic API."""
