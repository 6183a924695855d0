"""How skewed a model's tensor sizes are: largest tensor over all parameters (Tiresias,
NSDI 2019).
"""

# Jobs do not tell their tensors. These are counted from the published architectures;
# the names are those of the traces and of common models. Where a name is not known,
# nothing is said.

# Largest tensor / parameters, in millions.
_MILLIONS: dict[str, tuple[float, float]] = {
    "vgg16": (102.76, 138.36),  # 25088 x 4096
    "vgg19": (102.76, 143.67),
    "alexnet": (37.75, 61.10),  # 9216 x 4096
    "inception3": (2.05, 23.83),
    "resnet18": (2.36, 11.17),  # 512 x 512 x 3 x 3, and so below
    "cifar10": (2.36, 11.17),
    "resnet18-cifar10": (2.36, 11.17),
    "resnet50": (2.36, 25.56),
    "imagenet": (2.36, 25.56),
    "resnet50-imagenet": (2.36, 25.56),
    "bert": (23.44, 109.48),  # 30522 x 768
    "bert-squad": (23.44, 109.48),
    "yolov3": (4.72, 61.95),  # 512 x 1024 x 3 x 3
    "yolov3-voc": (4.72, 61.95),
}


def tensor_skew(application: str) -> float | None:
    """Return the share of the largest tensor in (0, 1]; None where the application is
    not known.
    """
    sizes = _MILLIONS.get(application)
    return None if sizes is None else sizes[0] / sizes[1]
