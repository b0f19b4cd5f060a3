"""Try the README on a machine with nothing: a minimal Debian in a folder, a new user, two commands.

    sudo python3 tools/bare_machine.py                              # make demo, make test
    sudo python3 tools/bare_machine.py --suite bookworm --run 'make demo'
    sudo python3 tools/bare_machine.py --without g++ --run 'make demo'   # what is said then
    sudo python3 tools/bare_machine.py --dockerfile docker/Dockerfile --run 'vllm --version'

It has the packages that the README's line of `apt install` names and no others. Needs debootstrap
and root; everything is in --folder, mounts are the process's own. What the checkout holds is
copied as git lists it, with edits, without what is ignored.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
USER = "newcomer"
HOME = f"/home/{USER}"
CHECKOUT = f"{HOME}/vllm"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MOUNTED = "BARE_MACHINE_HAS_OWN_MOUNTS"


class Machine:
    """A Debian in a folder.

    Attributes:
        root: the folder.
        variables: environment of the commands that run in it.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.variables = {"PATH": PATH, "LANG": "C.UTF-8"}

    def install_system(self, suite: str, mirror: str, kept: Path) -> None:
        """Unpack a minimal system, made with debootstrap the first time."""
        archive = kept / f"{suite}.tar"
        if not archive.exists():
            fresh = kept / f"{suite}.new"
            shutil.rmtree(fresh, ignore_errors=True)
            _run(["debootstrap", "--variant=minbase", suite, str(fresh), mirror])
            _run(["tar", "--numeric-owner", "-C", str(fresh), "-cf", f"{archive}.part", "."])
            Path(f"{archive}.part").rename(archive)
            shutil.rmtree(fresh)
        self.root.mkdir(parents=True)
        _run(["tar", "--numeric-owner", "-C", str(self.root), "-xf", str(archive)])
        shutil.copy2("/etc/resolv.conf", self.root / "etc" / "resolv.conf")
        _run(["mount", "--rbind", "/dev", str(self.root / "dev")])
        _run(["mount", "-t", "proc", "proc", str(self.root / "proc")])
        _run(["mount", "--rbind", "/sys", str(self.root / "sys")])

    def add_certificates(self, bundle: Path) -> None:
        """Let pip trust what this machine trusts, as behind a company's proxy."""
        shutil.copy2(bundle, self.root / "etc" / "own-certificates.crt")
        self.variables["PIP_CERT"] = "/etc/own-certificates.crt"

    def run(self, command: str, *, user: str = "root", folder: str = "/") -> int:
        """Run a command of the shell in the machine, and return its exit status."""
        home = HOME if user == USER else "/root"
        print(f"\n[{user}] $ {command}", flush=True)
        start = time.monotonic()
        variables = [f"{name}={value}" for name, value in self.variables.items()]
        status = subprocess.run(
            ["chroot", f"--userspec={user}", str(self.root), "env", "-i", f"HOME={home}",
             *variables, "sh", "-c", f"cd {shlex.quote(folder)} && {command}"],
            stdin=subprocess.DEVNULL,
        ).returncode  # fmt: skip
        print(f"[{user}] exit status {status} after {time.monotonic() - start:.0f} s", flush=True)
        return status

    def copy_checkout(self, folder: str, owner: str) -> None:
        """Copy what git knows of this checkout into the machine."""
        listed = subprocess.run(
            ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others",
             "--exclude-standard"], check=True, capture_output=True,
        ).stdout.decode()  # fmt: skip
        for name in filter(None, listed.split("\0")):
            if (ROOT / name).exists():
                copy = self.root / folder.lstrip("/") / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, copy)
        self.run(f"chown -R {owner} {folder}")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{shlex.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def _refuse_mounts(folder: Path) -> None:
    """Stop before a folder is deleted that something is mounted in: it would be deleted as well."""
    mounts = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for mount in mounts:
        if Path(mount).is_relative_to(folder.resolve()):
            sys.exit(f"{mount} is mounted: unmount it before {folder} is made anew.")


def packages_of_readme() -> list[str]:
    """Return the packages that the README tells to install."""
    line = re.search(r"^sudo apt install (.*)$", (ROOT / "README.md").read_text(), re.MULTILINE)
    if line is None:
        sys.exit("README.md has no line 'sudo apt install ...'.")
    return line[1].split("#")[0].split()


def instructions(dockerfile: Path) -> Iterator[tuple[str, str]]:
    """Yield the instructions of a Dockerfile: the word, and the rest in one line."""
    text = re.sub(r"\\\n\s*", " ", dockerfile.read_text())
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            word, _, rest = line.partition(" ")
            yield word.upper(), rest.strip()


def run_dockerfile(machine: Machine, dockerfile: Path) -> tuple[str, str]:
    """Do what a Dockerfile says, from its second instruction on; return its user and folder."""
    user, folder = "root", "/"
    for word, rest in instructions(dockerfile):
        if word == "RUN" and machine.run(rest, user=user, folder=folder) != 0:
            sys.exit(f"{dockerfile}: this step failed: {rest}")
        elif word == "WORKDIR":
            folder = rest
            (machine.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif word == "USER":
            user = rest
        elif word == "COPY":
            if rest != ". .":
                sys.exit(f"{dockerfile}: only 'COPY . .' is known here, not {rest}.")
            machine.copy_checkout(folder, user)
        elif word == "ENV":
            name, _, value = rest.partition("=")
            machine.variables[name] = value.replace("$PATH", machine.variables["PATH"])
    return user, folder


def suite_of(dockerfile: Path) -> str:
    """Return the Debian that a Dockerfile starts from."""
    base = next(rest for word, rest in instructions(dockerfile) if word == "FROM")
    found = re.fullmatch(r"debian:(\w+)-slim", base)
    if found is None:
        sys.exit(f"{dockerfile} starts from {base}: only debian:SUITE-slim can be made here.")
    return found[1]


def main() -> int:
    args = parse_arguments()
    if MOUNTED not in os.environ:  # mounts that vanish with this process, whatever ends it
        os.environ[MOUNTED] = "1"
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable,
                              *sys.argv])  # fmt: skip
    root = args.folder / "root"
    if root.exists():
        _refuse_mounts(root)
        shutil.rmtree(root)
    args.folder.mkdir(parents=True, exist_ok=True)
    machine = Machine(root)
    machine.install_system(
        suite_of(args.dockerfile) if args.dockerfile else args.suite, args.mirror, args.folder
    )
    machine.variables |= dict(setting.split("=", 1) for setting in args.env)
    if args.certificates:
        machine.add_certificates(args.certificates)
    if args.dockerfile:
        user, folder = run_dockerfile(machine, args.dockerfile)
    else:
        user, folder = USER, CHECKOUT
        packages = [name for name in packages_of_readme() if name not in args.without]
        machine.run(f"apt-get update -qq && apt-get install -y -qq --no-install-recommends "
                    f"{' '.join(packages)} >/dev/null")  # fmt: skip
        machine.run(f"useradd --create-home {USER}")
        machine.copy_checkout(CHECKOUT, f"{USER}:")
    statuses = [machine.run(command, user=user, folder=folder) for command in args.run]
    return max(statuses)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--suite", default="trixie", help="release of Debian")
    parser.add_argument("--mirror", default="http://deb.debian.org/debian")
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp/bare-machine"))
    parser.add_argument("--without", action="append", default=[], help="leave a package out")
    parser.add_argument("--dockerfile", type=Path, help="do its steps instead")
    parser.add_argument("--certificates", type=Path, help="a bundle that pip is to trust")
    parser.add_argument("--env", action="append", default=[], help="NAME=VALUE, as set by a user")
    parser.add_argument("--run", action="append", help="default: 'make demo' and 'make test'")
    args = parser.parse_args()
    args.run = args.run or ["make demo", "make test"]
    return args


if __name__ == "__main__":
    sys.exit(main())
