"""What a run will need, measured without a GPU and estimated over cards and numbers of them."""
