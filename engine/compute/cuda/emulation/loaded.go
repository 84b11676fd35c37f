package emulation

import (
	"fmt"

	"github.com/outrider-dev/outrider/engine/internal/dl"
)

// Loaded says why the driver's library here is none of the emulation's, or nil.
func Loaded() error {
	lib, err := dl.Open("the emulation of CUDA (make test-cuda-emulated)", first)
	if err != nil {
		return err
	}
	var devices uintptr
	if err := lib.Symbols(map[string]*uintptr{"outrider_emulation_devices": &devices}); err != nil {
		return fmt.Errorf("%s is not the emulation's: what asks for that runs over it alone (make test-cuda-emulated)", lib.Name)
	}
	return nil
}
