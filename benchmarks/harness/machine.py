"""Figures as a file, the machine and commit they belong to, and this process's peak memory."""

import json
import os
import platform
import subprocess
from typing import Any, Dict

from towers.base.cores import count_cores

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def write_figures(path: str, content: Any) -> None:
  """Writes figures as JSON."""
  with open(path, 'w', encoding='utf-8') as file:
    json.dump(content, file, indent=1)


def describe_machine() -> Dict[str, str]:
  """Returns the processor, the number of cores that may be used, the system, and the commit."""
  return dict(processor=_find_processor(), cores=str(count_cores()), system=platform.platform(),
              commit=_find_commit())


def read_peak_bytes() -> int:
  """Returns this process's peak memory. `getrusage` would count that of its parent too."""
  with open('/proc/self/status', encoding='utf-8') as file:
    [kilobytes] = [line.split()[1] for line in file if line.startswith('VmHWM:')]
  return int(kilobytes) * 1024


def _find_processor():
  with open('/proc/cpuinfo', encoding='utf-8') as file:
    names = [line.split(':', 1)[1].strip() for line in file if line.startswith('model name')]
  return names[0] if names else platform.machine()


def _find_commit():
  """Returns the commit's hash, with '+' if files have changed since; '?' outside a repository."""
  def run(*arguments):
    done = subprocess.run(('git', '-C', _ROOT) + arguments, stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True)
    return done.stdout.strip() if done.returncode == 0 else None

  try:
    commit = run('rev-parse', '--short=12', 'HEAD')
    return '?' if commit is None else commit + ('+' if run('status', '--porcelain') else '')
  except OSError:
    return '?'
