"""The Triton back end: loop IR and a schedule in, Triton source and GPU binaries out."""
