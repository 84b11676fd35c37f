// Command outrider-engine serves a language model with speculative decoding
// over an OpenAI-compatible API.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outrider-dev/outrider/engine/fault"
)

// version is set by the linker; without it the module's own is used.
var version = ""

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// run is main without the process: the answer is the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	root := &cobra.Command{
		Use:           "outrider-engine",
		Short:         "Serve a language model with speculative decoding",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.AddCommand(serveCommand(stderr), fetchCommand(stdout, stderr), versionCommand())
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(flagError)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(context.Background())
	if err == nil {
		return 0
	}
	if !isFault(err) { // cobra's own: an unknown command or argument
		err = fault.Errorf(fault.InvalidConfig, "%w: see outrider-engine --help", err)
	}
	if path := terminationLog(args); path != "" {
		if err := os.WriteFile(path, fault.Message(err), 0o644); err != nil {
			fmt.Fprintln(stderr, "outrider-engine: --termination-log:", err)
		}
	}
	fmt.Fprintln(stderr, "outrider-engine:", oneLine(err.Error()))
	return fault.ReasonOf(err).ExitCode()
}

// terminationLog is the file of --termination-log. It is looked for by hand,
// since the flags may be what is wrong.
func terminationLog(args []string) string {
	const flag = "--termination-log"
	path := os.Getenv(variable(flag[2:]))
	for i, arg := range args {
		if value, ok := strings.CutPrefix(arg, flag+"="); ok {
			path = value
		} else if arg == flag && i+1 < len(args) {
			path = args[i+1]
		}
	}
	return path
}

func isFault(err error) bool {
	var f *fault.Error
	return errors.As(err, &f)
}

// oneLine joins the lines of a message, which is the last one that a log shows.
func oneLine(s string) string {
	return strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), " ")
}

// flagError says what is wrong with a flag and what is allowed.
func flagError(cmd *cobra.Command, err error) error {
	if errors.Is(err, pflag.ErrHelp) {
		return err
	}
	var wrong *pflag.InvalidValueError
	if errors.As(err, &wrong) {
		return fault.Errorf(fault.InvalidConfig, "--%s is %q: allowed is %s", wrong.GetFlag().Name, wrong.GetValue(), kind(wrong.GetFlag()))
	}
	return fault.Errorf(fault.InvalidConfig, "%w: see %s --help for those there are", err, cmd.CommandPath())
}

// kind says in words what a flag takes.
func kind(f *pflag.Flag) string {
	switch f.Value.Type() {
	case "int", "int64":
		return "a whole number"
	case "float64":
		return "a number"
	case "bool":
		return "true or false"
	case "duration":
		return "a duration such as 30s or 2m"
	}
	return "a string"
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			fmt.Fprintf(cmd.OutOrStdout(), "outrider-engine %s %s %s/%s\n", buildVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
		},
	}
}

func buildVersion() string {
	if version != "" {
		return version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "(devel)"
}
