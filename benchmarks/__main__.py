"""`make bench`: run the benchmarks that need no special machine, one after another; half an hour on two cores."""

from __future__ import annotations

from benchmarks import audit, bodies, convolution, head, methods, scale, secagg, simulator

head.main(head.RECORDS)
convolution.main()
simulator.main()
bodies.main()
methods.main()
scale.main()
secagg.main()
audit.main()
