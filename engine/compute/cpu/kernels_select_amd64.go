package cpu

import "golang.org/x/sys/cpu"

// supportedKernels are the sets that this processor runs, fastest first.
func supportedKernels() []*kernels {
	var sets []*kernels
	if cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512DQ {
		sets = append(sets, &kernels{
			name: "avx512", lanes: 16,
			bf16: tiles{
				[]tileFunc{tileBF16r4m1AVX512, tileBF16r4m2AVX512, tileBF16r4m3AVX512, tileBF16r4m4AVX512},
				[]tileFunc{tileBF16r1m1AVX512, tileBF16r1m2AVX512, tileBF16r1m3AVX512, tileBF16r1m4AVX512},
			},
			f32: tiles{
				[]tileFunc{tileF32r4m1AVX512, tileF32r4m2AVX512, tileF32r4m3AVX512, tileF32r4m4AVX512},
				[]tileFunc{tileF32r1m1AVX512, tileF32r1m2AVX512, tileF32r1m3AVX512, tileF32r1m4AVX512},
			},
			f16: tiles{
				[]tileFunc{tileF16r4m1AVX512, tileF16r4m2AVX512, tileF16r4m3AVX512, tileF16r4m4AVX512},
				[]tileFunc{tileF16r1m1AVX512, tileF16r1m2AVX512, tileF16r1m3AVX512, tileF16r1m4AVX512},
			},
			i4:       []quantTileFunc{quantI4m1AVX512, quantI4m2AVX512, quantI4m3AVX512, quantI4m4AVX512},
			i8:       []quantTileFunc{quantI8m1AVX512, quantI8m2AVX512, quantI8m3AVX512, quantI8m4AVX512, quantI8m5AVX512, quantI8m6AVX512, quantI8m7AVX512, quantI8m8AVX512},
			f8:       []quantTileFunc{quantF8m1AVX512, quantF8m2AVX512, quantF8m3AVX512, quantF8m4AVX512, quantF8m5AVX512, quantF8m6AVX512, quantF8m7AVX512, quantF8m8AVX512},
			weighted: weightedAVX512, pause: pause,
		})
	}
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA && hasF16C() {
		sets = append(sets, &kernels{
			name: "avx2", lanes: 8,
			bf16: tiles{
				[]tileFunc{tileBF16r4m1AVX2, tileBF16r4m2AVX2},
				[]tileFunc{tileBF16r1m1AVX2, tileBF16r1m2AVX2},
			},
			f32: tiles{
				[]tileFunc{tileF32r4m1AVX2, tileF32r4m2AVX2},
				[]tileFunc{tileF32r1m1AVX2, tileF32r1m2AVX2},
			},
			f16: tiles{
				[]tileFunc{tileF16r4m1AVX2, tileF16r4m2AVX2},
				[]tileFunc{tileF16r1m1AVX2, tileF16r1m2AVX2},
			},
			i4:       []quantTileFunc{quantI4m1AVX2, quantI4m2AVX2, quantI4m3AVX2, quantI4m4AVX2},
			i8:       []quantTileFunc{quantI8m1AVX2, quantI8m2AVX2, quantI8m3AVX2, quantI8m4AVX2},
			f8:       []quantTileFunc{quantF8m1AVX2, quantF8m2AVX2, quantF8m3AVX2, quantF8m4AVX2},
			weighted: weightedAVX2, pause: pause,
		})
	}
	return append(sets, genericKernels)
}
