"""Bodies: the paper's CNNs, MobileNetV2, a multilayer perceptron, and any `nn.Module` of yours."""
