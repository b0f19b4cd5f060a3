"""What `test_gpu` measures.

python -m tests.benchmarks.measured values|fails|silent|hangs FILE
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

what, file = sys.argv[1], Path(sys.argv[2])
with file.open("a") as log:
    log.write(f"{what}\n")
if what == "values":
    print("some text of a library")
    print('{"all": 12.5}')
elif what == "fails":
    raise ValueError("this model has no shape.")
elif what == "silent":
    sys.exit(3)
else:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    file.write_text(str(child.pid))
    time.sleep(60)
