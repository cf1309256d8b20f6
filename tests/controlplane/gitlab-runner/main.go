// A double of GitLab Runner's Kubernetes executor: it runs one job, as version 19.4.0 does
// (executors/kubernetes and common/build.go of gitlab-org/gitlab-runner), and prints the job's log.
// It creates the same pod, asks the API server the same questions with the same delays, and has the
// same ends. Standard input is the job as JSON; SIGTERM is the cancellation by a user.
//
// Left out: what happens before a job reaches the executor, caches and artifacts, the pod watcher, and
// the files by which scripts and their output pass through the helper: scripts run by exec, as with
// FF_USE_LEGACY_KUBERNETES_EXECUTION_STRATEGY. With `protected_labels: false` it is a runner before 17.9,
// whose jobs may overwrite the labels that name their project.
//
// Status 0: the job succeeded. 1: its script failed. 2: a system failure, which `retry: when:
// runner_system_failure` repeats. 3: it was cancelled.
package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// job is what GitLab sends and config.toml says, as far as it matters here.
type job struct {
	ID              int64             `json:"id"`
	Name            string            `json:"name"`
	ProjectID       int64             `json:"project_id"`
	ProjectName     string            `json:"project_name"`
	RootNamespaceID int64             `json:"root_namespace_id"`
	Variables       map[string]string `json:"variables"`
	Image           string            `json:"image"`
	Script          string            `json:"script"`
	// Timeout is the job's own, in seconds.
	Timeout  int64    `json:"timeout"`
	Services []string `json:"services"`
	// Retries is that of `retry: {max: N, when: runner_system_failure}`.
	Retries int    `json:"retries"`
	Runner  runner `json:"runner"`
}

// runner is its section of config.toml, by the names of `[runners.kubernetes]` but for its own name.
type runner struct {
	Name             string            `json:"name" toml:"-"`
	Namespace        string            `json:"namespace" toml:"namespace"`
	Image            string            `json:"image" toml:"image"`
	ServiceAccount   string            `json:"service_account" toml:"service_account"`
	HelperImage      string            `json:"helper_image" toml:"helper_image"`
	PollInterval     int               `json:"poll_interval" toml:"poll_interval"`
	PollTimeout      int               `json:"poll_timeout" toml:"poll_timeout"`
	TerminationGrace *int64            `json:"pod_termination_grace_period_seconds" toml:"pod_termination_grace_period_seconds"`
	CleanupGrace     *int64            `json:"cleanup_grace_period_seconds" toml:"cleanup_grace_period_seconds"`
	PodLabels        map[string]string `json:"pod_labels" toml:"pod_labels"`
	PodAnnotations   map[string]string `json:"pod_annotations" toml:"pod_annotations"`
	// PodSpec are strategic merge patches, with FF_USE_ADVANCED_POD_SPEC_CONFIGURATION.
	PodSpec []json.RawMessage `json:"pod_spec" toml:"-"`
	Patches []podSpec         `json:"-" toml:"pod_spec"`
	// Regular expressions of what a job may overwrite; empty: nothing.
	LabelsOverwrite         string `json:"pod_labels_overwrite_allowed" toml:"pod_labels_overwrite_allowed"`
	AnnotationsOverwrite    string `json:"pod_annotations_overwrite_allowed" toml:"pod_annotations_overwrite_allowed"`
	ServiceAccountOverwrite string `json:"service_account_overwrite_allowed" toml:"service_account_overwrite_allowed"`
	PrintPodWarningEvents   *bool  `json:"print_pod_warning_events" toml:"print_pod_warning_events"`
	ProtectedLabels         *bool  `json:"protected_labels" toml:"-"`
}

// podSpec is an entry of `[[runners.kubernetes.pod_spec]]`.
type podSpec struct {
	Name  string `toml:"name"`
	Type  string `toml:"patch_type"`
	Patch string `toml:"patch"`
}

func isSet(flag *bool) bool { return flag == nil || *flag }

// scriptFailed is the end of a job whose script failed.
type scriptFailed struct{ code int }

func (e scriptFailed) Error() string {
	return fmt.Sprintf("command terminated with exit code %d", e.code)
}

// notConfigured is a setting that keeps a job from running. It is no failure of the system.
type notConfigured struct{ error }

var errCancelled = errors.New("canceled")

func main() {
	kubeconfig := flag.String("kubeconfig", "", "the runner's access to the cluster")
	config := flag.String("config", "", "a config.toml, whose first runner runs the job")
	flag.Parse()
	os.Exit(run(*kubeconfig, *config))
}

func run(kubeconfig, file string) int {
	job := job{Timeout: 3600}
	decoder := json.NewDecoder(os.Stdin)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&job); err != nil {
		fmt.Fprintln(os.Stderr, "the job on standard input:", err)
		return 64
	}
	if file != "" {
		if err := job.Runner.read(file); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 64
		}
	}
	job.Image = cmp.Or(job.Image, job.Runner.Image, "busybox:1")
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 64
	}
	// Admission warnings are in the runner's own log, not in the job's.
	config.WarningHandler = rest.NoWarnings{}
	config.UserAgent = "gitlab-runner 19.4.0 (double; go)"
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 64
	}
	ctx, stop := context.WithTimeoutCause(context.Background(), time.Duration(job.Timeout)*time.Second,
		fmt.Errorf("execution took longer than %s seconds", time.Duration(job.Timeout)*time.Second))
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	go func() {
		<-signals
		cancel(errCancelled)
	}()
	for attempt := 0; ; attempt++ {
		status := attemptJob(ctx, config, client, job)
		if status != 2 || attempt >= job.Retries {
			return status
		}
		job.ID++
	}
}

// attemptJob runs one job of GitLab: a retried job is a new one.
func attemptJob(ctx context.Context, config *rest.Config, client kubernetes.Interface, job job) int {
	fmt.Printf("Running with gitlab-runner 19.4.0\n  on %s\n", job.Runner.Name)
	fmt.Println("Preparing the \"kubernetes\" executor")
	fmt.Println("Using Kubernetes namespace:", job.Runner.Namespace)
	fmt.Println("Using Kubernetes executor with image", job.Image, "...")
	fmt.Println("Using attach strategy to execute scripts...")
	executor := &executor{job: job, config: config, client: client, seen: map[string]bool{}}
	err := executor.execute(ctx)
	executor.cleanUp()
	var script scriptFailed
	var setting notConfigured
	switch {
	case err == nil:
		fmt.Println("Job succeeded")
		return 0
	case errors.Is(context.Cause(ctx), errCancelled):
		fmt.Println("ERROR: Job failed: canceled")
		return 3
	case ctx.Err() != nil:
		fmt.Println("ERROR: Job failed:", context.Cause(ctx))
		return 1
	case errors.As(err, &setting):
		fmt.Println("ERROR: Job failed:", setting)
		return 1
	case errors.As(err, &script):
		fmt.Println("ERROR: Job failed:", err)
		return 1
	default:
		fmt.Println("ERROR: Job failed (system failure):", err)
		return 2
	}
}
