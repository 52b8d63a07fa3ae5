"""All reasons why the hub rejects or flags an upload: stable code, fault, remedy.

`docs/package-index.md` shows this table, and a test compares the two. The rules in `POLICY` are optional:
they concern taste or trust, not validity, so an operator can set each of them to `allow`, `flag` or `refuse`
(`WANDER_HUB_UPLOAD_POLICY`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Action = Literal["allow", "flag", "refuse"]

REBUILD = "build it again with `wander publish`, `uv build` or `python -m build`"


@dataclass(frozen=True, slots=True)
class Rule:
    """One reason to reject or flag an upload."""

    code: str
    what: str
    """Description of the fault."""
    remedy: str
    """Advice to the publisher, used as the hint of the error, unless a check has a more specific
    hint."""
    status: int = 422
    default: Action = "refuse"
    """Action of an optional rule. All other rules always refuse."""


FORM = (
    Rule(
        "bad_form",
        "the form does not upload exactly one file",
        "send it with twine, `uv publish` or `wander publish`",
        400,
    ),
    Rule(
        "bad_check_report",
        "the `wander_check` field is not a report of `wander check`",
        "pass `--no-check` to `wander publish` to leave the report out",
    ),
    Rule(
        "bad_filename",
        "PEP 427 or PEP 625 does not allow this file name for a wheel or a source archive",
        "keep the name that `python -m build` or `uv build` gave the file",
    ),
    Rule("empty_file", "the file is empty", REBUILD),
    Rule(
        "too_large",
        "the file is larger than the hub's limit",
        "leave data out of the package and load it at run time",
        413,
    ),
    Rule(
        "digest_mismatch",
        "a digest in the form (md5, sha256 or blake2b) does not match the received bytes",
        "the file changed in transit; send it again",
    ),
)
ZIP = (
    Rule("not_a_wheel", "the file is not a zip archive, or is truncated", REBUILD),
    Rule(
        "zip_framing",
        "bytes before, between or after the records, an unknown record, or wrong counts in the end record",
        REBUILD,
    ),
    Rule("zip_mismatch", "a local header and the central directory disagree", REBUILD),
    Rule("zip_comment", "the archive or a member has a comment", "write the archive without comments"),
    Rule(
        "zip_extra_field",
        "an extra field is malformed, repeated, or of a kind that alters a member",
        REBUILD,
    ),
    Rule(
        "zip64",
        "a ZIP64 record, although an archive of this size does not need it",
        "write the archive without ZIP64",
    ),
    Rule(
        "data_descriptor",
        "a member's size is stored after its data",
        "write the archive to a file on disk instead of a pipe",
    ),
    Rule("bad_flags", "a member has a flag that no wheel needs", REBUILD),
    Rule(
        "bad_name_encoding",
        "a member's name is neither ASCII nor valid UTF-8 that is marked as UTF-8",
        REBUILD,
    ),
    Rule("encrypted_member", "a member is encrypted", "write the archive without a password"),
    Rule("bad_compression", "a member is neither stored nor deflated", "compress with deflate"),
    Rule(
        "corrupt_member", "a member's data cannot be unpacked, or is shorter or longer than declared", REBUILD
    ),
    Rule("size_mismatch", "a member's unpacked size differs from its header", REBUILD),
    Rule("bad_checksum", "a member's CRC-32 is wrong", "the file is damaged; " + REBUILD),
)
TAR = (
    Rule(
        "not_an_sdist",
        "the file is not a gzip-compressed tar archive, is truncated, or has a wrong CRC",
        REBUILD,
    ),
    Rule("tar_framing", "a tar header is malformed, or data follows the end of the archive", REBUILD),
    Rule(
        "tar_extension",
        "an extended header (pax or GNU) is malformed, too large, or of a kind that alters a member",
        "write the archive with Python's `tarfile` in its pax format",
    ),
    Rule("trailing_data", "data or a second gzip member follows the compressed archive", REBUILD),
    Rule("sparse_member", "a member is sparse", "write the archive without `--sparse`"),
)
MEMBERS = (
    Rule(
        "unsafe_path",
        "a member's path is absolute, leaves the archive, or has another meaning on another system",
        "rename the file: no `..`, backslash, drive, control character, reserved name, final dot or space",
    ),
    Rule("path_too_long", "a member's path is too long or too deep", "shorten the path"),
    Rule("duplicate_member", "two members have the same name", REBUILD),
    Rule(
        "colliding_members",
        "two members would become the same file because of letter case, Unicode form or the `.data` folder",
        "rename one of the two files",
    ),
    Rule("file_and_folder", "one path is both a file and a folder", "rename one of the two"),
    Rule("link_member", "a member is a symbolic or hard link", "put the file itself into the archive"),
    Rule(
        "special_member",
        "a member is a device or a pipe, is set-user-id, or is neither a file nor a folder",
        REBUILD,
    ),
    Rule(
        "too_many_members",
        "the archive has too many members",
        "leave data out, or pack it into one file",
        413,
    ),
    Rule(
        "too_large_unpacked",
        "the total size of the members is larger than the hub's limit",
        "leave data out of the package",
        413,
    ),
    Rule(
        "compression_bomb",
        "the archive unpacks to many times its size",
        "leave out generated data, or load it at run time",
        413,
    ),
    Rule(
        "too_large_metadata",
        "a metadata file is larger than the hub's limit",
        "shorten README and metadata",
        413,
    ),
)
WHEEL = (
    Rule(
        "bad_dist_info",
        "there is not exactly one `.dist-info` folder, it has another name or version, or there is an "
        "`.egg-info`",
        REBUILD,
    ),
    Rule("missing_metadata", "METADATA, WHEEL, RECORD or PKG-INFO is missing from its folder", REBUILD),
    Rule("bad_wheel_file", "WHEEL cannot be read, or lacks a field", REBUILD),
    Rule("tag_mismatch", "the tags or the build number in WHEEL do not match the file name", REBUILD),
    Rule("bad_record", "RECORD cannot be read", REBUILD),
    Rule("record_missing", "RECORD does not list a file of the wheel", REBUILD),
    Rule("record_extra", "RECORD lists a file that is not in the wheel", REBUILD),
    Rule("record_weak_digest", "RECORD lacks a sha256, sha384 or sha512 for a file", REBUILD),
    Rule("record_digest", "the digest in RECORD does not match the file", REBUILD),
    Rule("record_size", "the size in RECORD does not match the file", REBUILD),
    Rule(
        "bad_data_folder",
        "a `.data` folder has another name, or installs files outside of `share`, `etc` and `include`",
        "keep data inside the package",
    ),
    Rule(
        "bad_entry_points",
        "entry_points.txt cannot be read, or an entry point does not name an object",
        "fix `[project.entry-points]`",
    ),
    Rule(
        "unsafe_script",
        "a script's name is a path, occurs twice, or is the name of an interpreter, of `pip` or of "
        "`activate`",
        "use only letters, digits, `.`, `-` and `_` in the name of a script",
    ),
)
SDIST = (
    Rule("bad_top_folder", "a member is outside of the folder `name-version`", REBUILD),
    Rule(
        "missing_pyproject",
        "pyproject.toml is missing or not valid TOML",
        "add a pyproject.toml with `[build-system]`",
    ),
    Rule(
        "bad_generated",
        "`generated` under `[tool.wander]` is not a list of patterns, or matches too many files of the wheel",
        'write `generated = ["package/_version.py"]` for files that only the build creates',
    ),
)
VERSION = (
    Rule(
        "wheel_differs_from_source",
        "a Python file (or `.pth`, `.start`) of the wheel is missing from the source archive or differs "
        "from it",
        "build the wheel from the source archive, as `uv build` does; list files that the build creates "
        "under `generated` of `[tool.wander]` in pyproject.toml",
    ),
    Rule(
        "source_tree_mismatch",
        "the declared digest of the source tree does not match the source archive",
        "publish again with `wander publish`",
    ),
)
METADATA = (
    Rule(
        "bad_metadata",
        "the core metadata violates its specification (up to version 2.6)",
        "fix `[project]` in pyproject.toml",
    ),
    Rule("text_too_long", "a metadata field is longer than the hub's limit", "shorten the field"),
    Rule(
        "license_file_missing",
        "a file listed as `License-File` is not in the archive",
        "add the file, or remove it from `license-files`",
    ),
    Rule(
        "unsafe_requirement",
        "a requirement names a repository, a source archive or a file; has an address with a variable, a "
        "user, a query or without TLS; or has a character that no requirement needs",
        "require a release by name, or a wheel by its `https` address",
    ),
    Rule("name_mismatch", "file name, metadata and form have different names or versions", REBUILD),
    Rule(
        "version_mismatch",
        "the version in the form differs from that of the file",
        "send the form that belongs to the file",
    ),
    Rule("reserved_name", "the hub uses this name for its own addresses", "choose another name"),
    Rule(
        "no_environment",
        "there is neither an entry point `wander.environments` nor a module with `load_environment`",
        'add `[project.entry-points."wander.environments"]` with `name = "module:load_environment"` '
        "to pyproject.toml, or define `load_environment` in the module",
    ),
)
POLICY = (
    Rule(
        "local_version",
        "the version has a local part (`+...`), so other packages cannot depend on it",
        "remove the part after `+`",
    ),
    Rule(
        "startup_file",
        "a `.pth` or `.start` file runs code whenever Python starts",
        "run this code when the package is imported",
        default="flag",
    ),
    Rule(
        "site_customization",
        "`sitecustomize` or `usercustomize` runs whenever Python starts",
        "run this code when the package is imported",
    ),
    Rule(
        "data_scripts",
        "`.data/scripts` installs commands that are not entry points",
        "use `[project.scripts]`",
        default="flag",
    ),
    Rule(
        "data_files",
        "`.data/data` or `.data/headers` installs files outside of the packages",
        "keep data inside the package",
        default="flag",
    ),
    Rule(
        "shadows_stdlib",
        "a top-level module has the same name as a module of Python's standard library",
        "move the module into a package with a name of its own",
    ),
    Rule(
        "shadows_wander",
        "a top-level module is called `verifiers`, or has the name of a Wander package",
        "move the module into a package with a name of its own",
    ),
    Rule(
        "direct_url",
        "a requirement names the address of a wheel, whose content can change",
        "publish that package and depend on a version of it",
        default="flag",
    ),
    Rule(
        "unknown_classifier",
        "a classifier is neither registered nor `Private :: ...`",
        "choose from https://pypi.org/classifiers",
        default="flag",
    ),
    Rule(
        "nested_archive",
        "a member is itself an archive, whose members are not checked",
        "put the files themselves into the package",
        default="flag",
    ),
    Rule(
        "bytecode",
        "a compiled `.pyc` file hides the code that runs",
        "leave `.pyc` files out",
        default="flag",
    ),
)
RULES = {
    rule.code: rule
    for group in (FORM, ZIP, TAR, MEMBERS, WHEEL, SDIST, VERSION, METADATA, POLICY)
    for rule in group
}
OPTIONAL = {rule.code: rule.default for rule in POLICY}
"""Codes of the optional rules with their default actions."""
