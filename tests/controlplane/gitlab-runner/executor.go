package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sort"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/util/exec"
)

type executor struct {
	job    job
	config *rest.Config
	client kubernetes.Interface
	pod    *v1.Pod
	// seen are the Warning Events that were printed.
	seen map[string]bool
}

// execute runs the stages of the job. What fails before the first script has run is a failure of
// `prepare environment`.
func (e *executor) execute(ctx context.Context) error {
	if err := e.job.check(); err != nil {
		return err
	}
	fmt.Println("Preparing environment")
	err := e.stage(ctx, "helper", `echo "Running on $(hostname) via double..."`)
	if err != nil {
		return fmt.Errorf("prepare environment: %w. Check https://docs.gitlab.com/runner/shells/#shell-profile-loading for more information", err)
	}
	fmt.Println("Executing \"step_script\" stage of the job script")
	return e.stage(ctx, "build", e.job.Script)
}

// stage runs a script, and prints the Warning Events of the pod if that fails (`Run`, `withPullRetry`).
func (e *executor) stage(ctx context.Context, container, script string) error {
	err := e.run(ctx, container, script)
	if err != nil && isSet(e.job.Runner.PrintPodWarningEvents) {
		e.printWarnings(ctx)
	}
	return err
}

func (e *executor) run(ctx context.Context, container, script string) error {
	if e.pod == nil {
		if err := e.setUp(ctx); err != nil {
			return fmt.Errorf("setting up build pod: %w", err)
		}
		phase, err := e.waitForRunning(ctx)
		if err != nil {
			return fmt.Errorf("waiting for pod running: %w", err)
		}
		if phase != v1.PodRunning {
			return fmt.Errorf("pod failed to enter running state: %s", phase)
		}
	}
	ended := make(chan error, 1)
	go func() { ended <- e.exec(ctx, container, script) }()
	unhealthy := e.watchStatus(ctx)
	select {
	case err := <-ended:
		return err
	case err := <-unhealthy:
		return err
	case <-ctx.Done():
		return errors.New("build aborted")
	}
}

// setUp creates the pod (`setupBuildPod`).
func (e *executor) setUp(ctx context.Context) error {
	pod, err := e.job.pod()
	if err != nil {
		return err
	}
	if account := e.job.account(); account != "" {
		if _, err := e.client.CoreV1().ServiceAccounts(pod.Namespace).Get(ctx, account, metav1.GetOptions{}); err != nil {
			return fmt.Errorf("resources check error: %w", err)
		}
	}
	if len(e.job.Runner.PodSpec) > 0 {
		fmt.Println("WARNING: Advanced Pod Spec configuration enabled, merging the provided PodSpec to the generated one. This is a beta feature and is subject to change. Feedback is collected in this issue: https://gitlab.com/gitlab-org/gitlab-runner/-/issues/29659 ...")
	}
	e.pod, err = e.client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		e.pod = nil
	}
	return err
}

// waitForRunning polls the pod (`waitForPodRunning`, `getPodPhase`).
func (e *executor) waitForRunning(ctx context.Context) (v1.PodPhase, error) {
	interval, timeout := e.job.Runner.PollInterval, e.job.Runner.PollTimeout
	if interval <= 0 {
		interval = 3
	}
	if timeout <= 0 {
		timeout = 180
	}
	last := v1.PodUnknown
	for i := 0; i <= timeout/interval; i++ {
		if ctx.Err() != nil {
			return v1.PodUnknown, ctx.Err()
		}
		pod, err := e.client.CoreV1().Pods(e.pod.Namespace).Get(ctx, e.pod.Name, metav1.GetOptions{})
		if err != nil {
			return v1.PodUnknown, err
		}
		if done, err := isRunning(pod); err != nil || done {
			return pod.Status.Phase, err
		}
		e.printPhase(ctx, pod)
		last = pod.Status.Phase
		select {
		case <-time.After(time.Duration(interval) * time.Second):
		case <-ctx.Done():
		}
	}
	return v1.PodUnknown, fmt.Errorf("timed out waiting for pod to start (last phase: %s)", last)
}

// isRunning reports whether the build container is ready.
func isRunning(pod *v1.Pod) (bool, error) {
	switch pod.Status.Phase {
	case v1.PodRunning:
		for _, status := range pod.Status.ContainerStatuses {
			if status.Name == "build" && status.Ready {
				return true, nil
			}
		}
		return false, nil
	case v1.PodSucceeded:
		return false, errors.New("pod already succeeded before it begins running")
	case v1.PodFailed:
		return false, errors.New("pod status is failed")
	default:
		return false, nil
	}
}

// printPhase prints where the pod is and its conditions. With print_pod_warning_events, it asks for
// Events first, as the runner does to find sandboxes that cannot be made.
func (e *executor) printPhase(ctx context.Context, pod *v1.Pod) {
	warnings := isSet(e.job.Runner.PrintPodWarningEvents)
	if warnings {
		_, _ = e.client.CoreV1().Events(pod.Namespace).List(ctx, warningsOf(pod.Name))
	}
	node := pod.Spec.NodeName
	if node == "" {
		node = "<unknown>"
	}
	fmt.Printf("Waiting for pod %s/%s to be running on the node %s, status is %s\n", pod.Namespace, pod.Name, node, pod.Status.Phase)
	for _, condition := range pod.Status.Conditions {
		if warnings && condition.Reason != "" {
			fmt.Printf("\t%s: %q\n", condition.Reason, condition.Message)
		}
	}
}

func warningsOf(pod string) metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: fmt.Sprintf("involvedObject.name=%s,type=Warning", pod), Limit: 200}
}

// printWarnings prints the Warning Events that were not printed yet (`logPodWarningEvents`).
func (e *executor) printWarnings(ctx context.Context) {
	if e.pod == nil {
		return
	}
	events, err := e.client.CoreV1().Events(e.pod.Namespace).List(ctx, warningsOf(e.pod.Name))
	if err != nil {
		return
	}
	sort.SliceStable(events.Items, func(i, j int) bool {
		return occurred(&events.Items[i]).Before(occurred(&events.Items[j]))
	})
	for i := range events.Items {
		event := &events.Items[i]
		key := fmt.Sprintf("%s:%d", event.UID, event.Count)
		if !e.seen[key] {
			e.seen[key] = true
			fmt.Println("WARNING: Event retrieved from the cluster:", event.Message)
		}
	}
}

func occurred(event *v1.Event) time.Time {
	switch {
	case event.Series != nil && !event.Series.LastObservedTime.IsZero():
		return event.Series.LastObservedTime.Time
	case !event.LastTimestamp.IsZero():
		return event.LastTimestamp.Time
	case !event.EventTime.IsZero():
		return event.EventTime.Time
	default:
		return event.CreationTimestamp.Time
	}
}

// watchStatus reports a pod that is gone, or does not run any more (`watchPodStatus`).
func (e *executor) watchStatus(ctx context.Context) <-chan error {
	unhealthy := make(chan error, 1)
	interval := max(e.job.Runner.PollInterval, 1)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Duration(interval) * time.Second):
			}
			pod, err := e.client.CoreV1().Pods(e.pod.Namespace).Get(ctx, e.pod.Name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				unhealthy <- err
				return
			}
			if err == nil && pod.Status.Phase != v1.PodRunning {
				unhealthy <- fmt.Errorf("pod %q status is %q", pod.Name, pod.Status.Phase)
				return
			}
		}
	}()
	return unhealthy
}

func (e *executor) exec(ctx context.Context, container, script string) error {
	request := e.client.CoreV1().RESTClient().Post().Resource("pods").
		Namespace(e.pod.Namespace).Name(e.pod.Name).SubResource("exec").
		VersionedParams(&v1.PodExecOptions{
			Container: container, Command: []string{"sh", "-e"}, Stdin: true, Stdout: true, Stderr: true,
		}, scheme.ParameterCodec)
	stream, err := remotecommand.NewWebSocketExecutor(e.config, "GET", request.URL().String())
	if err != nil {
		return err
	}
	err = stream.StreamWithContext(ctx, remotecommand.StreamOptions{
		Stdin: strings.NewReader(script + "\n"), Stdout: os.Stdout, Stderr: os.Stdout,
	})
	var exit exec.CodeExitError
	if errors.As(err, &exit) {
		return scriptFailed{exit.Code}
	}
	return err
}

// cleanUp deletes the pod, also if the job was cancelled (`cleanupResources`).
func (e *executor) cleanUp() {
	if e.pod == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	background := metav1.DeletePropagationBackground
	err := e.client.CoreV1().Pods(e.pod.Namespace).Delete(ctx, e.pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: e.job.Runner.CleanupGrace, PropagationPolicy: &background,
	})
	if err != nil {
		fmt.Println("ERROR: Error cleaning up pod:", err)
	}
}
