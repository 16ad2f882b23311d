package localkube

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

const stateFile = "state.json"

// state is what Attach must know of a cluster. It is saved after each change, so
// that even a start that was cut short can be cleaned up.
type state struct {
	Name       string       `json:"name"`
	Server     string       `json:"server"`
	AssetsDir  string       `json:"assetsDir"`
	MadeDir    bool         `json:"madeDir"`
	Audit      bool         `json:"audit"`
	Detached   bool         `json:"detached"`
	Components []*component `json:"components"`
	EtcdPort   int          `json:"etcdPort"`
}

func (s *state) save(dir string) error {
	content, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	temporary := filepath.Join(dir, stateFile+".new")
	if err := os.WriteFile(temporary, content, 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, filepath.Join(dir, stateFile))
}

// Attach returns the cluster whose folder is dir, usually one that another process started detached. It does not report
// whether the cluster runs; Processes does. An absent folder or one without a cluster is an error that matches
// os.ErrNotExist.
func Attach(dir string) (*Cluster, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	content, err := os.ReadFile(filepath.Join(dir, stateFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("no cluster in %s: %w", dir, err)
	}
	if err != nil {
		return nil, err
	}
	c := &Cluster{Dir: dir, AdminKubeconfig: filepath.Join(dir, adminKubeconfigFile)}
	if err := json.Unmarshal(content, &c.state); err != nil {
		return nil, fmt.Errorf("reading the state of the cluster in %s: %w", dir, err)
	}
	c.Name, c.AssetsDir = c.state.Name, c.state.AssetsDir
	if c.admin, err = unlimitedConfig(c.AdminKubeconfig); err != nil {
		return nil, err
	}
	return c, nil
}
