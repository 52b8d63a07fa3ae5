"""Pages of source code: the files of a version, and the changes between two versions."""
