package bootstrap

import (
	"fmt"
	"io"
	"strconv"

	"github.com/go-logr/logr"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	crzap "sigs.k8s.io/controller-runtime/pkg/log/zap"
)

// mostVerbose is the highest number that --log-level takes, client-go's own most verbose level.
const mostVerbose = 10

// parseLogLevel gives zap's level: logr's V(n) is zap's -n.
func parseLogLevel(level string) (zapcore.Level, error) {
	switch level {
	case "error":
		return zapcore.ErrorLevel, nil
	case "info":
		return zapcore.InfoLevel, nil
	case "debug":
		return zapcore.DebugLevel, nil
	}
	n, err := strconv.Atoi(level)
	if err != nil || n < 0 || n > mostVerbose {
		return 0, fmt.Errorf("%q is no log level", level)
	}
	return zapcore.Level(-n), nil
}

// logger writes one line an entry to w in the format and from the level that o says.
func (o *Options) logger(w io.Writer) (logr.Logger, error) {
	level, err := parseLogLevel(o.LogLevel)
	if err != nil {
		return logr.Logger{}, err
	}
	encoder := crzap.JSONEncoder
	if o.LogFormat == "console" {
		encoder = crzap.ConsoleEncoder
	}
	return crzap.New(
		crzap.WriteTo(w),
		crzap.Level(zap.NewAtomicLevelAt(level)),
		// an error says what failed; reconcile errors are expected and need no stack
		crzap.StacktraceLevel(zapcore.PanicLevel),
		encoder(func(c *zapcore.EncoderConfig) { c.EncodeTime = zapcore.RFC3339NanoTimeEncoder }),
	).WithName(o.Name), nil
}

// useLogger makes it the logger of controller-runtime and of everything that logs through klog (client-go).
func useLogger(logger logr.Logger) {
	ctrl.SetLogger(logger)
	klog.SetLogger(logger)
}
