"""GPUs: those that the NVIDIA driver lists, by the documented CSV of its `nvidia-smi`.

`nvidia-smi --help-query-gpu` describes the fields.
"""

import re
import subprocess
from typing import Any, Callable, List, NamedTuple, Optional, Tuple

from towers_tools.finding import Finding

_QUERY = ('index', 'name', 'driver_version', 'memory.total', 'compute_cap')
_SECONDS_TO_ANSWER = 30.0


class Gpu(NamedTuple):
  """A GPU, as its driver describes it."""
  device_index: int  # From 0, in the driver's order.
  name: str  # Of the product.
  driver: Tuple[int, ...]  # Its version, as (418, 67).
  memory_mib: Optional[int]  # None if the driver does not say.
  capability: Optional[Tuple[int, int]]  # The compute_cap, as (7, 0); None from older drivers.


def find_gpus(
    run: Callable[..., Any] = subprocess.run) -> Tuple[List[Gpu], List[Finding]]:
  """Returns the GPUs, and a finding if there are none."""
  for fields in (_QUERY, _QUERY[:-1]):
    command = ['nvidia-smi', f"--query-gpu={','.join(fields)}", '--format=csv,noheader,nounits']
    try:
      done = run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                 universal_newlines=True, timeout=_SECONDS_TO_ANSWER)
    except FileNotFoundError:
      return [], [_no_gpu('there is no nvidia-smi, so no NVIDIA driver',
                          'on a machine with a GPU, install its driver')]
    except (OSError, subprocess.TimeoutExpired) as error:
      return [], [Finding('FAULT', f'nvidia-smi does not answer: {error}',
                          'reload the driver or restart the machine')]
    if done.returncode == 0:
      gpus = parse_gpus(done.stdout)
      return gpus, [] if gpus else [_no_gpu('nvidia-smi lists none')]
    # Older drivers do not know the last field.
    if 'not a valid field' not in done.stdout:
      break
  return [], [Finding('FAULT', f"nvidia-smi fails: {' '.join(done.stdout.split())}",
                      'install a driver that fits this kernel, or restart the machine after an '
                      'update of the driver')]


def parse_gpus(text: str) -> List[Gpu]:
  """Returns the GPUs in the CSV of nvidia-smi, whose last column `compute_cap` may be missing."""
  gpus = []
  for line in text.splitlines():
    index, *cells = [cell.strip() for cell in line.split(',')]
    if not index.isdigit() or len(cells) not in (len(_QUERY) - 2, len(_QUERY) - 1):
      continue
    name, driver, memory_mib = cells[:3]
    match = re.match(r'(\d+)\.(\d+)$', ''.join(cells[3:]))
    gpus.append(Gpu(device_index=int(index), name=name,
                    driver=tuple(map(int, re.findall(r'\d+', driver))),
                    memory_mib=int(memory_mib) if memory_mib.isdigit() else None,
                    capability=(int(match.group(1)), int(match.group(2))) if match else None))
  return gpus


def _no_gpu(reason, fix=''):
  return Finding('note', f'no GPU: {reason}. Towers stand on virtual CPU devices', fix)
