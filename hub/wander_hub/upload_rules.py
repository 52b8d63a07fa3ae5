"""Every reason for which an upload is refused or flagged: stable code, what is wrong, what to do.

`docs/package-index.md` shows this table; a test holds the two together. A rule with `optional` is a matter of
taste or trust and not of soundness: an operator chooses `allow`, `flag` or `refuse` for it
(`WANDER_HUB_UPLOAD_POLICY`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Action = Literal["allow", "flag", "refuse"]

REBUILD = "build it again with `wander publish`, `uv build` or `python -m build`"


@dataclass(frozen=True, slots=True)
class Rule:
    """One reason."""

    code: str
    what: str
    """What is wrong with such a file."""
    remedy: str
    """The remedy for its publisher; the hint of the answer unless a check knows a better one."""
    status: int = 422
    default: Action = "refuse"
    optional: bool = False
    """The operator may choose another action."""


FORM = (
    Rule(
        "bad_form",
        "the form does not upload exactly one file",
        "send it with twine, `uv publish` or `wander publish`",
        400,
    ),
    Rule(
        "bad_check_report",
        "the field `wander_check` is not a report of `wander check`",
        "`wander publish --no-check` leaves it out",
    ),
    Rule(
        "bad_filename",
        "the file name is not one that PEP 427 or PEP 625 allows for a wheel or a source archive",
        "keep the name that `python -m build` or `uv build` gave the file",
    ),
    Rule("empty_file", "the file is empty", REBUILD),
    Rule(
        "too_large",
        "the file is over the hub's limit",
        "leave data out of the package and load it at run time",
        413,
    ),
    Rule(
        "digest_mismatch",
        "a digest in the form (md5, sha256 or blake2b) is not that of the bytes that arrived",
        "the file changed on its way; send it again",
    ),
)
ZIP = (
    Rule("not_a_wheel", "the file is not a zip archive, or ends too early", REBUILD),
    Rule(
        "zip_framing",
        "bytes before, between or after the records, an unknown record, or an end record that counts wrongly",
        REBUILD,
    ),
    Rule("zip_mismatch", "a local header and the central directory disagree", REBUILD),
    Rule("zip_comment", "the archive or a member has a comment", "write the archive without comments"),
    Rule(
        "zip_extra_field",
        "an extra field is malformed, repeated, or of a kind that changes a member",
        REBUILD,
    ),
    Rule(
        "zip64",
        "a ZIP64 record that an archive of this size does not need",
        "write the archive without ZIP64",
    ),
    Rule(
        "data_descriptor",
        "a member's size stands after its bytes",
        "write the archive to a file on disk and not to a pipe",
    ),
    Rule("bad_flags", "a member has a flag that no wheel needs", REBUILD),
    Rule("bad_name_encoding", "a member's name is neither ASCII nor marked, valid UTF-8", REBUILD),
    Rule("encrypted_member", "a member is encrypted", "write the archive without a password"),
    Rule("bad_compression", "a member is neither stored nor deflated", "compress with deflate"),
    Rule(
        "corrupt_member", "a member's bytes cannot be unpacked, or end before or after they should", REBUILD
    ),
    Rule("size_mismatch", "a member unpacks to another size than its header says", REBUILD),
    Rule("bad_checksum", "a member's CRC-32 is wrong", "the file is damaged; " + REBUILD),
)
TAR = (
    Rule(
        "not_an_sdist",
        "the file is not a gzip stream of a tar archive, ends too early, or has a wrong CRC",
        REBUILD,
    ),
    Rule("tar_framing", "a tar header is malformed, or something follows the end of the archive", REBUILD),
    Rule(
        "tar_extension",
        "an extended header (pax or GNU) is malformed, too large, or of a kind that changes a member",
        "write the archive with Python's `tarfile` in its pax format",
    ),
    Rule("trailing_data", "bytes or a second gzip member follow the compressed archive", REBUILD),
    Rule("sparse_member", "a member is sparse", "write the archive without `--sparse`"),
)
MEMBERS = (
    Rule(
        "unsafe_path",
        "a member's path is absolute, leaves the archive, or means something else on another system",
        "rename the file: no `..`, backslash, drive, control character, reserved name, final dot or space",
    ),
    Rule("path_too_long", "a member's path is too long or too deep", "shorten the path"),
    Rule("duplicate_member", "two members have the same name", REBUILD),
    Rule(
        "colliding_members",
        "two members would become one file: by case, by Unicode form, or through the `.data` folder",
        "rename one of the two files",
    ),
    Rule("file_and_folder", "one path is both a file and a folder", "rename one of the two"),
    Rule("link_member", "a member is a symbolic or hard link", "put the file itself into the archive"),
    Rule("special_member", "a member is a device, a pipe, set-user-id, or neither file nor folder", REBUILD),
    Rule(
        "too_many_members",
        "the archive has too many members",
        "leave data out, or pack it into one file",
        413,
    ),
    Rule(
        "too_large_unpacked",
        "the members add up to more than the hub's limit",
        "leave data out of the package",
        413,
    ),
    Rule(
        "compression_bomb",
        "the archive unpacks to far more than its size",
        "leave out generated data, or load it at run time",
        413,
    ),
    Rule("too_large_metadata", "a metadata file is over the hub's limit", "shorten README and metadata", 413),
)
WHEEL = (
    Rule(
        "bad_dist_info",
        "not exactly one `.dist-info` folder, or that of another name or version, or an `.egg-info`",
        REBUILD,
    ),
    Rule("missing_metadata", "METADATA, WHEEL, RECORD or PKG-INFO is not where it belongs", REBUILD),
    Rule("bad_wheel_file", "WHEEL cannot be read, or lacks a field", REBUILD),
    Rule("tag_mismatch", "the tags or the build in WHEEL are not those of the file name", REBUILD),
    Rule("bad_record", "RECORD cannot be read", REBUILD),
    Rule("record_missing", "RECORD does not name a file of the wheel", REBUILD),
    Rule("record_extra", "RECORD names a file that the wheel does not hold", REBUILD),
    Rule("record_weak_digest", "RECORD lacks a sha256, sha384 or sha512 for a file", REBUILD),
    Rule("record_digest", "the digest in RECORD is not that of the file", REBUILD),
    Rule("record_size", "the size in RECORD is not that of the file", REBUILD),
    Rule(
        "bad_data_folder",
        "a `.data` folder of another name, or files in it that go outside of `share`, `etc` and `include`",
        "keep data inside the package",
    ),
    Rule(
        "bad_entry_points",
        "entry_points.txt cannot be read, or names no object",
        "mend `[project.entry-points]`",
    ),
    Rule(
        "unsafe_script",
        "a script's name is a path, occurs twice, or is that of an interpreter, of `pip` or of `activate`",
        "letters, digits, `.`, `-` and `_` make a script's name",
    ),
)
SDIST = (
    Rule("bad_top_folder", "a member lies outside the one folder `name-version`", REBUILD),
    Rule(
        "missing_pyproject",
        "there is no pyproject.toml, or it is not TOML",
        "add a pyproject.toml with `[build-system]`",
    ),
    Rule(
        "bad_generated",
        "`generated` under `[tool.wander]` is not a list of patterns, or covers too many files of the wheel",
        'write `generated = ["package/_version.py"]` for what only the build makes',
    ),
)
VERSION = (
    Rule(
        "wheel_differs_from_source",
        "a Python file (or `.pth`, `.start`) of the wheel is not in the source archive, or differs there",
        "build the wheel from the source archive, as `uv build` does; name what the build itself makes "
        "under `generated` of `[tool.wander]` in pyproject.toml",
    ),
    Rule(
        "source_tree_mismatch",
        "the digest given for the source tree is not that of the source archive",
        "publish again with `wander publish`",
    ),
)
METADATA = (
    Rule(
        "bad_metadata",
        "the core metadata is not what its standard (up to version 2.6) allows",
        "mend `[project]` in pyproject.toml",
    ),
    Rule("text_too_long", "a field of the metadata is over the hub's limit", "shorten the field"),
    Rule(
        "license_file_missing",
        "a `License-File` is not in the archive",
        "add the file, or take it off `license-files`",
    ),
    Rule(
        "unsafe_requirement",
        "a requirement names a repository, a source archive or a file, or an address with a variable, user, "
        "a query or without TLS, or holds a character that no requirement needs",
        "require a release by its name, or a wheel by its `https` address",
    ),
    Rule("name_mismatch", "file name, metadata and form do not give the same name and version", REBUILD),
    Rule(
        "version_mismatch",
        "the form gives another version than the file",
        "send the form that belongs to the file",
    ),
    Rule("reserved_name", "the hub needs the name for its own addresses", "choose another name"),
    Rule(
        "no_environment",
        "neither an entry point of `wander.environments` nor a module with `load_environment`",
        'add `[project.entry-points."wander.environments"]` with `name = "module:load_environment"` '
        "to pyproject.toml, or define `load_environment` in the module",
    ),
)
POLICY = (
    Rule(
        "local_version",
        "the version has a local part (`+...`), which cannot be depended on by others",
        "drop the part after `+`",
        optional=True,
    ),
    Rule(
        "startup_file",
        "a `.pth` or `.start` file runs code whenever Python starts",
        "do at import what has to be done",
        default="flag",
        optional=True,
    ),
    Rule(
        "site_customization",
        "`sitecustomize` or `usercustomize` runs whenever Python starts",
        "do at import what has to be done",
        optional=True,
    ),
    Rule(
        "data_scripts",
        "`.data/scripts` puts files among the commands that were not made from entry points",
        "use `[project.scripts]`",
        default="flag",
        optional=True,
    ),
    Rule(
        "data_files",
        "`.data/data` or `.data/headers` puts files outside the packages",
        "keep data inside the package",
        default="flag",
        optional=True,
    ),
    Rule(
        "shadows_stdlib",
        "a top-level module has the name of one of Python's own",
        "move the module into a package of its own name",
        optional=True,
    ),
    Rule(
        "shadows_wander",
        "a top-level module is called `verifiers`, or has the name of a package of Wander",
        "move the module into a package of its own name",
        optional=True,
    ),
    Rule(
        "direct_url",
        "a requirement names the address of a wheel, where something else may lie tomorrow",
        "publish that package and depend on a version of it",
        default="flag",
        optional=True,
    ),
    Rule(
        "unknown_classifier",
        "a classifier is neither a known one nor `Private :: ...`",
        "choose from https://pypi.org/classifiers",
        default="flag",
        optional=True,
    ),
    Rule(
        "nested_archive",
        "a member is itself an archive, whose members nobody checked",
        "put the files themselves into the package",
        default="flag",
        optional=True,
    ),
    Rule(
        "bytecode",
        "a compiled `.pyc` file hides what runs",
        "leave `.pyc` files out",
        default="flag",
        optional=True,
    ),
)
RULES = {
    rule.code: rule
    for group in (FORM, ZIP, TAR, MEMBERS, WHEEL, SDIST, VERSION, METADATA, POLICY)
    for rule in group
}
OPTIONAL = {code: rule.default for code, rule in RULES.items() if rule.optional}
"""The rules that an operator may change, with their defaults."""
