"""CPU kernels: the loop IR printed as C++ and compiled into one shared library a program."""
