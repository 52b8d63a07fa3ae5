"""Messages of the classic API: dictionaries, models, and the plain format that Wander records."""
