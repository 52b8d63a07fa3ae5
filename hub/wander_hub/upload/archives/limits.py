"""Limits that bound what checking one archive costs the hub. The sizes of files are settings."""

MIB = 1024 * 1024

MAX_MEMBERS = 20_000
"""Maximum number of members of an archive. More than 65,534 would need ZIP64."""
MAX_COMPRESSION_RATIO = 50
"""Maximum ratio of an archive's unpacked size to its own size."""
COMPRESSION_RATIO_FROM_BYTES = 16 * MIB
"""Unpacked size in bytes from which the compression ratio is limited."""
MAX_METADATA_BYTES = 8 * MIB
"""Maximum size of METADATA, RECORD and PKG-INFO, in bytes. The other metadata files may have 256 KiB."""
MAX_README_BYTES = 2 * MIB
MAX_SUMMARY_CHARS = 512
MAX_FIELD_CHARS = 4096
"""Maximum number of characters of each other value in the metadata. A license may have 16 times as many."""
MAX_FIELD_VALUES = 1000
"""Maximum number of values of a repeated field, such as requirements."""
MAX_PATH_CHARS = 512
"""Maximum number of characters of a member's path."""
