"""Limits that bound what checking one archive costs the hub. The sizes of files are settings."""

MIB = 1024 * 1024

MAX_MEMBERS = 20_000
"""Members of an archive; more than 65,534 would need ZIP64."""
MAX_COMPRESSION_RATIO = 50
"""How many times its own size an archive may unpack to."""
COMPRESSION_RATIO_FROM_BYTES = 16 * MIB
"""An archive whose members have fewer bytes may be compressed at any ratio."""
MAX_METADATA_BYTES = 8 * MIB
"""Bytes of each of METADATA, RECORD and PKG-INFO; the other metadata files may have 256 KiB."""
MAX_README_BYTES = 2 * MIB
MAX_SUMMARY_CHARS = 512
MAX_FIELD_CHARS = 4096
"""Characters of each other value in the metadata; a license may have sixteen times as many."""
MAX_FIELD_VALUES = 1000
"""Values of one repeated field, such as requirements."""
MAX_PATH_CHARS = 512
"""Characters of a member's path."""
