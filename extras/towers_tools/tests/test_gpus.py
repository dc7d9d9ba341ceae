"""GPUs: recorded answers of nvidia-smi, and each fault with its fix."""

import subprocess

import pytest

from towers_tools.finding import Finding, format_finding
from towers_tools.gpus import Gpu, find_gpus, parse_gpus
from towers_tools.tensorflow_build import Build, check_gpus, check_visible, find_build, parse_build

TF1 = Build('1.14.0', (10, 0), (3, 5), (7, 5))
TF2 = parse_build('2.21.0', '12.5.1', ['sm_60', 'sm_70', 'sm_80', 'sm_89', 'compute_90'])

# In the format csv,noheader,nounits, of drivers with and without compute_cap.
A100 = ('0, NVIDIA A100-SXM4-40GB, 535.104.05, 40960, 8.0\n1, NVIDIA A100-SXM4-40GB, 535.104.05, '
        '40960, 8.0\n')
V100 = '0, Tesla V100-SXM2-16GB, 418.67, 16130\n'
MIXED = ('0, NVIDIA GeForce RTX 4090, 550.54.14, 24564, 8.9\n1, Tesla K80, 470.199.02, 11441, 3.7\n'
         '2, NVIDIA H100 80GB HBM3, 550.54.14, [N/A], 9.0\n')
REFUSAL = 'Field "compute_cap" is not a valid field to query.\n'
BROKEN = ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure "
          'that the latest NVIDIA driver is installed and running.\n')


def smi(*answers):
  """Stands in for subprocess.run: gives these texts or exceptions in turn, and keeps commands."""
  asked, left = [], list(answers)

  def run(command, **_):
    asked.append(command)
    answer = left.pop(0)
    if isinstance(answer, Exception):
      raise answer
    is_fault = answer in (REFUSAL, BROKEN)
    return subprocess.CompletedProcess(command, 2 if is_fault else 0, answer)

  run.asked = asked
  return run


def test_recorded_answers_are_parsed():
  assert parse_gpus(A100)[1] == Gpu(1, 'NVIDIA A100-SXM4-40GB', (535, 104, 5), 40960, (8, 0))
  assert parse_gpus(V100) == [Gpu(0, 'Tesla V100-SXM2-16GB', (418, 67), 16130, None)]
  assert [(gpu.capability, gpu.memory_mib) for gpu in parse_gpus(MIXED)] == [
      ((8, 9), 24564), ((3, 7), 11441), ((9, 0), None)]
  assert parse_gpus('') == parse_gpus('No devices were found\n') == []


def test_an_older_driver_is_queried_again_without_the_field_it_lacks():
  run = smi(REFUSAL, V100)
  gpus, findings = find_gpus(run)
  assert len(gpus) == 1 and findings == []
  assert 'compute_cap' in run.asked[0][1] and 'compute_cap' not in run.asked[1][1]
  assert run.asked[0][2] == '--format=csv,noheader,nounits'


@pytest.mark.parametrize('answer, kind, words', [
    (FileNotFoundError(), 'note', ['no nvidia-smi', 'virtual CPU devices']),
    ('', 'note', ['lists none']),
    (BROKEN, 'FAULT', ['couldn\'t communicate', 'install a driver']),
    (subprocess.TimeoutExpired('nvidia-smi', 30), 'FAULT', ['does not answer', 'restart']),
    (PermissionError(13, 'Permission denied'), 'FAULT', ['Permission denied'])])
def test_problems_of_nvidia_smi_are_findings(answer, kind, words):
  gpus, [finding] = find_gpus(smi(answer))
  assert gpus == [] and finding.kind == kind
  assert all(word in format_finding(finding) for word in words)


def gpu(capability, driver=(550, 54)):
  return Gpu(0, 'GPU', driver, 16000, capability)


@pytest.mark.parametrize('capability', [
    (3, 5), (3, 7), (5, 2), (6, 0), (7, 0), (7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (12, 0), None])
def test_1_14_knows_nothing_from_ampere_on_and_2_x_nothing_before_its_first(capability):
  [first], [second] = check_gpus([gpu(capability)], TF1), check_gpus([gpu(capability)], TF2)
  assert first.kind == ('FAULT' if capability and capability >= (8, 0) else 'ok')
  assert second.kind == ('FAULT' if capability and capability < (6, 0) else 'ok')
  if first.kind == 'FAULT':
    assert 'CUDA 10.0' in first.text and 'above 7.5' in first.text
    assert 'TOWERS_TARGET=tf2' in first.fix
  if second.kind == 'FAULT':
    assert '6.0 and above' in second.text and 'TOWERS_TARGET=tf1' in second.fix


@pytest.mark.parametrize('build, driver, is_right', [
    (TF1, (410, 48), True), (TF1, (410, 47), False), (TF1, (396, 82, 1), False),
    (TF2, (525, 60, 13), True), (TF2, (418, 67), False),
    (Build('2.30.0', (13, 1)), (570, 1), False)])
def test_drivers_that_are_too_old_are_named(build, driver, is_right):
  [finding] = check_gpus([gpu((7, 0), driver)], build)
  assert finding.kind == ('ok' if is_right else 'FAULT')
  assert is_right or ('.'.join(map(str, driver)) in finding.text and
                      'newer NVIDIA driver' in finding.fix)


def test_a_tensorflow_without_cuda_and_one_that_sees_fewer_gpus_are_faults(monkeypatch):
  [first, _] = check_gpus(parse_gpus(A100), Build('2.21.0', None))
  assert first.kind == 'FAULT' and 'without CUDA' in first.text
  assert 'tensorflow[and-cuda]==2.21.0' in first.fix
  monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
  assert check_visible(parse_gpus(A100), TF2, 2) == [Finding('ok', 'TensorFlow sees 2 of 2 GPUs')]
  [finding] = check_visible(parse_gpus(A100), TF1, 0)
  assert finding.kind == 'FAULT' and 'sees 0 of 2' in finding.text
  assert 'tensorflow-gpu==1.14.0' in finding.fix
  monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '1')
  [finding] = check_visible(parse_gpus(A100), TF2, 1)
  assert finding.kind == 'note' and 'CUDA_VISIBLE_DEVICES=1' in finding.text
  assert check_visible([], TF2, 0) == []


def test_the_build_info_of_2_x_is_parsed():
  assert tuple(TF2) == ('2.21.0', (12, 5), (6, 0), None)
  assert parse_build('2.9', '11.2', ['sm_35', 'sm_80']) == Build('2.9', (11, 2), (3, 5), (8, 0))
  assert parse_build('2.30', '13.0', ['sm_75', 'sm_120']) == Build('2.30', (13, 0), (7, 5), (12, 0))
  build = find_build()
  assert build.cuda and build.least and build.cuda[0] in (10, 12)
