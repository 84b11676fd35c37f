package cpu

import "golang.org/x/sys/cpu"

// supportedKernels are the sets that this processor runs, fastest first.
func supportedKernels() []*kernels {
	var sets []*kernels
	if cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512DQ {
		set := &kernels{
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
			i4:      []intTileFunc{intI4m1AVX512, intI4m2AVX512, intI4m3AVX512, intI4m4AVX512, intI4m5AVX512, intI4m6AVX512, intI4m7AVX512, intI4m8AVX512},
			i8:      []intTileFunc{intI8m1AVX512, intI8m2AVX512, intI8m3AVX512, intI8m4AVX512, intI8m5AVX512, intI8m6AVX512, intI8m7AVX512, intI8m8AVX512},
			f8:      []floatTileFunc{quantF8m1AVX512, quantF8m2AVX512, quantF8m3AVX512, quantF8m4AVX512, quantF8m5AVX512, quantF8m6AVX512, quantF8m7AVX512, quantF8m8AVX512},
			spanMax: spanMaxAVX512, spanWords: spanWordsAVX512,
			weighted: weightedAVX512, pause: pause,
		}
		if cpu.X86.HasAVX512VNNI {
			vnni := *set
			vnni.name = "avx512vnni"
			vnni.i4 = []intTileFunc{intI4m1VNNI, intI4m2VNNI, intI4m3VNNI, intI4m4VNNI, intI4m5VNNI, intI4m6VNNI, intI4m7VNNI, intI4m8VNNI}
			vnni.i8 = []intTileFunc{intI8m1VNNI, intI8m2VNNI, intI8m3VNNI, intI8m4VNNI, intI8m5VNNI, intI8m6VNNI, intI8m7VNNI, intI8m8VNNI}
			sets = append(sets, &vnni)
		}
		sets = append(sets, set)
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
			i4:      []intTileFunc{intI4m1AVX2, intI4m2AVX2, intI4m3AVX2, intI4m4AVX2},
			i8:      []intTileFunc{intI8m1AVX2, intI8m2AVX2, intI8m3AVX2, intI8m4AVX2},
			f8:      []floatTileFunc{quantF8m1AVX2, quantF8m2AVX2, quantF8m3AVX2, quantF8m4AVX2},
			spanMax: spanMaxAVX2, spanWords: spanWordsAVX2,
			weighted: weightedAVX2, pause: pause,
		})
	}
	return append(sets, genericKernels)
}
