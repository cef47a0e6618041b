"""Problems of other packages as problems of qbvi: one file each, imported on use."""
