"""What a training run will cost: arithmetic only, nothing is run or allocated."""
