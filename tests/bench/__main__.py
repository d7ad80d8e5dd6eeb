"""``make bench``: measured figures next to the limit of the disk (or a peer) in the same run."""

from __future__ import annotations

import argparse

from tests.bench import imap, repair, scratch, smtp, store


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--dir", help="where to work; default: a loop-mounted ext4 where possible, else a folder here")
    parser.add_argument("--quick", action="store_true", help="a tenth of the work, for a first look")
    arguments = parser.parse_args()
    with scratch.directory(arguments.dir) as directory:
        store.run(directory, scale=0.1 if arguments.quick else 1.0)
        smtp.run(directory, scale=0.1 if arguments.quick else 1.0)
        imap.run(directory, scale=0.1 if arguments.quick else 1.0)
        repair.run(directory, quick=arguments.quick)


if __name__ == "__main__":
    main()
