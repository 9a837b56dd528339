"""Step 6: new weights for the kept channels."""
