"""ResNet-50 in PyTorch on this GPU, eager and compiled: a line of JSON for each case.

  python -m benchmarks.peers.pytorch 256 30          # examples of a step, steps

Constant images lie on the GPU, in channels_last; TF32, and bfloat16 by autocast. Needs torch and
torchvision.
"""

import json
import sys
import time


def main(batch_size: int, num_steps: int) -> None:
  """Measures all cases; one that is cut off loses no line before it."""
  import torch
  import torchvision
  torch.backends.cudnn.benchmark = True
  torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
  images = torch.randn(batch_size, 3, 224, 224, device='cuda').to(
      memory_format=torch.channels_last)
  labels = torch.randint(0, 10, (batch_size,), device='cuda')
  for is_compiled in (False, True):
    for is_half in (False, True):
      net = torchvision.models.resnet50(num_classes=10).cuda().to(memory_format=torch.channels_last)
      optimizer = torch.optim.SGD(net.parameters(), 0.001, momentum=0.9)
      model = torch.compile(net) if is_compiled else net

      def step(model=model, optimizer=optimizer, is_half=is_half):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast('cuda', dtype=torch.bfloat16, enabled=is_half):
          loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

      began = time.time()
      step()
      first = time.time() - began
      for _ in range(5):
        step()
      torch.cuda.synchronize()
      began = time.time()
      for _ in range(num_steps):
        step()
      print(json.dumps(dict(
          case=f"PyTorch {torch.__version__} {'compiled' if is_compiled else 'eager'} "
               f"{'bfloat16' if is_half else 'TF32'}",
          examples_per_second=batch_size * num_steps / (time.time() - began),
          first_step_seconds=first)), flush=True)


if __name__ == '__main__':
  main(*map(int, sys.argv[1:3]))
