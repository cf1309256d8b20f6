package main

import (
	"encoding/json"
	"fmt"

	"github.com/BurntSushi/toml"
	"sigs.k8s.io/yaml"
)

// configuration is a config.toml, as far as it matters here.
type configuration struct {
	Runners []struct {
		Name       string          `toml:"name"`
		Executor   string          `toml:"executor"`
		Features   map[string]bool `toml:"feature_flags"`
		Kubernetes runner          `toml:"kubernetes"`
	} `toml:"runners"`
}

// read sets the runner to the first one of a config.toml. What the double does not know is an error.
func (r *runner) read(path string) error {
	var all configuration
	meta, err := toml.DecodeFile(path, &all)
	if err != nil {
		return err
	}
	if unknown := meta.Undecoded(); len(unknown) > 0 {
		return fmt.Errorf("%s: the double does not know %v", path, unknown)
	}
	if len(all.Runners) == 0 {
		return fmt.Errorf("%s has no runner", path)
	}
	one := all.Runners[0]
	*r = one.Kubernetes
	r.Name = one.Name
	if len(r.Patches) > 0 && !one.Features["FF_USE_ADVANCED_POD_SPEC_CONFIGURATION"] {
		return fmt.Errorf("%s: pod_spec has no effect without FF_USE_ADVANCED_POD_SPEC_CONFIGURATION", path)
	}
	for _, one := range r.Patches {
		if one.Type != "strategic" {
			return fmt.Errorf("%s: the double knows no patch_type %q", path, one.Type)
		}
		patch, err := yaml.YAMLToJSON([]byte(one.Patch))
		if err != nil {
			return err
		}
		r.PodSpec = append(r.PodSpec, json.RawMessage(patch))
	}
	return nil
}
