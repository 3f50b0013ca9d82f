#!/usr/bin/env python3
"""Gives each file of a tree the time that it had when its content was last seen, so that a tree that was copied anew is
not compiled anew. What has changed gets the time of now.

    keep_times.py TREE RECORD

RECORD (JSON: path, checksum, time) is read if it exists, and written. Build folders and version control are left out.
Standard library only."""
import hashlib, json, os, pathlib, sys

LEFT_OUT = ("build", "runs", ".git", "__pycache__")
HEADERS = "build-deps"  # which jobscripts/install_cuda_headers.sh fetches


def files(tree):
    for folder, folders, names in os.walk(tree):
        folders[:] = [f for f in folders if f == HEADERS or not f.startswith(LEFT_OUT)]
        yield from (pathlib.Path(folder, name) for name in names)


def main():
    tree, record = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    known = json.loads(record.read_text()) if record.exists() else {}
    seen, kept = {}, 0
    for path in files(tree):
        if path.is_symlink() or not path.is_file():
            continue
        name, checksum = str(path.relative_to(tree)), hashlib.sha256(path.read_bytes()).hexdigest()
        before = known.get(name)
        if before and before[0] != checksum:
            os.utime(path)
        elif before and before[1] != path.stat().st_mtime_ns:
            os.utime(path, ns=(before[1], before[1]))
            kept += 1
        seen[name] = [checksum, path.stat().st_mtime_ns]
    record.write_text(json.dumps(seen))
    if kept:
        print(f"{kept} files are as they were at the last build, and get the times of then")


main()
