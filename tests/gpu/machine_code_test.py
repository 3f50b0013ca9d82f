"""Faults that machine_code.py finds in what cuobjdump prints: planted in a short output. Needs no toolkit."""
import unittest
from unittest import mock

import machine_code

USAGE = """
arch = sm_80
 Function Plain:
  REG:{registers} STACK:{stack} SHARED:{shared} LOCAL:{local} CONSTANT[0]:424 TEXTURE:0 SURFACE:0 SAMPLER:0
arch = sm_90
 Function Bound:
  REG:128 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:424 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
ELF = """
arch = sm_80
.nv.info.Plain
\t<0x1>
\tAttribute:\tEIATTR_MAXREG_COUNT
\tFormat:\tEIFMT_HVAL
\tValue:\t0xff
arch = sm_90
.nv.info.Bound
\t<0x1>
\tAttribute:\tEIATTR_MAX_THREADS
\tFormat:\tEIFMT_SVAL
\tValue:\t{threads} 0x2 0x1
"""


def found(threads="0x80", **planted):
    usage = USAGE.format(**{"registers": 64, "stack": 0, "shared": 1024, "local": 0, **planted})
    text = {"--dump-elf": ELF.format(threads=threads), "--dump-resource-usage": usage}
    with mock.patch.object(machine_code, "dump", lambda what, path: text[what]):
        return {key: list(machine_code.faults(kernel)) for key, kernel in machine_code.kernels("library").items()}


class MachineCode(unittest.TestCase):
    def only(self, key, word, faults):
        self.assertEqual([key], [k for k, f in faults.items() if f])
        self.assertIn(word, faults[key][0])

    def test_kernels_that_are_right(self):
        self.assertEqual(found(), {("sm_80", "Plain"): [], ("sm_90", "Bound"): []})

    def test_planted_faults(self):
        self.only(("sm_80", "Plain"), "launch bound", found(registers=65))
        self.only(("sm_80", "Plain"), "spilled", found(stack=8))
        self.only(("sm_80", "Plain"), "local memory", found(local=16))
        self.only(("sm_80", "Plain"), "static shared", found(shared=49153))

    def test_a_launch_bound_counts(self):
        self.only(("sm_90", "Bound"), "128 registers for each of 1024 threads", found(threads="0x200"))


if __name__ == "__main__":
    unittest.main()
