"""Faults that a program's kernels recorded, read back as errors."""

import numpy as np

from ..ir.abi import RECORD_WORDS
from ..ir.errors import TilewrightError
from ..ir.faults import division_fault, index_fault
from ..ir.program import Program
from .device import Device


class Faults:
    """The records of a program's checks, in the memory of its device."""

    def __init__(self, program: Program, device: Device):
        self._checks, self._device = program.checks, device
        self._records = np.zeros((len(program.checks), RECORD_WORDS), np.int64)
        if self._checks:
            self._memory = device.allocate(self._records.nbytes, "records of faults", zero=True)
        self.places = {  # address of each buffer of records
            b.name: self._memory.address + b.offset
            for b in program.buffers.values()
            if b.role == "fault" and isinstance(b.offset, int)
        }

    def raise_first(self) -> None:
        """Raise the fault of the runs so far that comes first in the program, and forget all.

        Waits for the device when the program has checks. IndexOutOfRange or DivisionByZero.
        """
        if not self._checks:
            return
        self._device.download(self._memory, self._records)
        if self._records[:, 0].any():
            self.forget()
            raise self._error(int(np.flatnonzero(self._records[:, 0])[0]))

    def forget(self) -> None:
        """Forget what the runs so far have found."""
        if self._checks:
            self._device.zero(self._memory)

    def _error(self, number: int) -> TilewrightError:
        check, (marked, index) = self._checks[number], self._records[number].tolist()
        if check.is_divisor:
            return division_fault(check.op, loc=check.loc)
        return index_fault(check.op, index, marked - 1, wraps=check.wraps, loc=check.loc)
