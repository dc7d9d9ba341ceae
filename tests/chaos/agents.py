"""Agents that are killed, stopped and replaced, as processes of one machine.

  python -m tests.chaos --agents --minutes=60 --seed=1

Each stands for a host. As a cluster does, the run starts a new agent in the place of one that has
ended as soon as the others are too few.
"""

import contextlib
import os
import random
import signal
import subprocess
from typing import Dict, List, Sequence, Set

from tests.chaos.elastic import LOSE, LOSE_BESIDE, LOSE_HOST, LOSE_TWO_HOSTS, ElasticRun

_FLAGS = ('--host=127.0.0.1', '--lease_seconds=4', '--join_seconds=60')
_REPLACED = 1


class AgentsRun(ElasticRun):
  def begin(self) -> None:
    self._agents: Dict[int, subprocess.Popen] = {}
    self._stopped: List[subprocess.Popen] = []
    self._killed: Set[int] = set()
    for index in range(self.plan.shape.workers):
      self._start_agent(index)

  def _start_agent(self, index):
    meeting = os.path.join(self.folder, 'meeting')
    self._agents[index] = self.start('towers.launch.agent', f'--folder={meeting}',
                                     f'--index={index}', *_FLAGS)

  def add(self) -> None:
    for index, agent in list(self._agents.items()):
      if agent.poll() is not None:
        self._start_agent(index)
      elif _handles(agent.pid, signal.SIGUSR1):
        agent.send_signal(signal.SIGUSR1)

  def lose(self, kind: str, pids: Sequence[int], dice: random.Random) -> None:
    hosts = [(pid, agent) for pid in pids for agent in self._agents.values()
             if agent.pid == _find_parent(pid)]
    dice.shuffle(hosts)
    if kind == LOSE_BESIDE and len(hosts) > 1:
      _, agent = hosts.pop()
      agent.send_signal(signal.SIGSTOP)
      self._stopped.append(agent)
    if kind in (LOSE, LOSE_BESIDE):
      for pid, _ in hosts[:1]:
        with contextlib.suppress(ProcessLookupError):
          os.kill(pid, signal.SIGKILL)
    for _, agent in hosts[:{LOSE_HOST: 1, LOSE_TWO_HOSTS: 2}.get(kind, 0)]:
      agent.kill()
      agent.wait()
      self._killed.add(agent.pid)
    left = [agent for agent in self._agents.values()
            if agent.poll() is None and agent not in self._stopped]
    missing = [index for index, agent in self._agents.items() if agent not in left]
    for index in missing[:max(0, self.plan.min_workers - len(left))]:
      self._start_agent(index)

  def recover(self) -> None:
    """Lets stopped agents go on; those that were replaced leave."""
    for agent in self._stopped:
      agent.send_signal(signal.SIGCONT)
    self._stopped = []

  def may_end_with(self, codes: Sequence[int]) -> bool:
    for process, code in zip(self.processes, codes):
      is_current = process in self._agents.values()
      allowed = (-signal.SIGKILL,) if process.pid in self._killed else \
          (0,) if is_current else (0, _REPLACED)
      if code not in allowed:
        return False
    return True


def _find_parent(pid):
  with contextlib.suppress(OSError), open(f'/proc/{pid}/stat', encoding='ascii') as file:
    return int(file.read().rpartition(')')[2].split()[1])
  return None


def _handles(pid, number):
  """Returns whether a process has a handler for a signal, which would else end it."""
  with contextlib.suppress(OSError), open(f'/proc/{pid}/status', encoding='ascii') as file:
    for line in file:
      if line.startswith('SigCgt:'):
        return bool(int(line.split()[1], 16) >> (number - 1) & 1)
  return False
