"""Messages of the classic API: dictionaries, models, and the plain form that Wander keeps."""
