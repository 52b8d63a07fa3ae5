"""Tools for operators: audit log, metrics, doctor, job queue, backups, export and import."""
