"""The doctor: this machine as it is, and faults that a test can only simulate."""

import threading

import pytest

from test_gpus import BROKEN, smi
from tests.harness.processes import run_python
from towers_tools import doctor
from towers_tools.doctor import check_python, try_towers
from towers_tools.finding import Finding
from towers_tools.gpus import find_gpus


@pytest.mark.parametrize('version, is_right', [
    ((3, 6, 9), False), ((3, 7, 16), True), ((3, 8, 1), False), ((3, 9, 1), False),
    ((3, 10, 0), True), ((3, 13, 2), True), ((3, 14, 0), False)])
def test_pythons(version, is_right):
  assert (check_python(version).kind == 'ok') == is_right


def test_towers_that_compute_wrongly_or_do_not_return_are_faults(monkeypatch):
  assert try_towers().kind == 'ok'
  losses = iter([0.5, 0.6])
  monkeypatch.setattr(doctor, '_train', lambda devices: next(losses))
  assert try_towers().kind == 'FAULT'
  waits = threading.Event()
  monkeypatch.setattr(doctor, '_train', lambda devices: waits.wait(60))
  finding = try_towers(seconds=0.2)
  waits.set()
  assert finding.kind == 'FAULT' and 'within 0.2 s' in finding.text

  def fail(devices):
    raise RuntimeError('no kernel image\nis available')

  monkeypatch.setattr(doctor, '_train', fail)
  assert 'RuntimeError: no kernel image' in try_towers().text


@pytest.mark.parametrize('answer, is_right', [(FileNotFoundError(), True), (BROKEN, False)])
def test_the_examination_ends_with_the_number_of_faults(monkeypatch, answer, is_right):
  lines = []
  monkeypatch.setattr(doctor, 'try_towers', lambda: Finding('ok', '2 staged towers'))
  monkeypatch.setattr(doctor, 'find_gpus', lambda: find_gpus(smi(answer)))
  assert doctor.examine(lines.append) == is_right
  assert lines[-1] == ('nothing is at fault' if is_right else '1 fault found')
  assert any('2 staged towers' in line and line.startswith('ok') for line in lines)


def test_a_tensorflow_that_cannot_be_imported_is_a_finding_and_ends_with_code_1():
  code = ('import sys\nsys.modules["towers.tensorflow_v1"] = None\nimport main\n'
          'sys.exit(main.main(["main.py", "--doctor"]))')
  done = run_python('-c', code)
  assert done.returncode == 1 and done.stderr == ''
  assert 'FAULT  TensorFlow cannot be imported' in done.stdout
  assert done.stdout.endswith('1 fault found\n')
