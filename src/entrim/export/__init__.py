"""Write a network as ONNX or as a PyTorch program, and compare its outputs."""
