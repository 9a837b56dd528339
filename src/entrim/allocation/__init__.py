"""Step 5: how many channels each group keeps."""
