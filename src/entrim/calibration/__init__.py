"""Step 2: the statistics of each layer, from one pass over the images."""
