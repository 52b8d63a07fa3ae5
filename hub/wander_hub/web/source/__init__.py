"""Pages of source code: the files of a version, and what two versions changed."""
