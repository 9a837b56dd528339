"""The paper's tables: as printed, run again, and the studies beside them."""
