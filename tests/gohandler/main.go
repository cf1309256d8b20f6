// The smallest mutating admission handler for pods that Go's controller-runtime allows:
// it decodes the pod, sets one label and answers with the patch. The benchmark compares
// the webhook with it.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"net/http"
	"os"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager/signals"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

type label struct{ decoder admission.Decoder }

func (l label) Handle(_ context.Context, request admission.Request) admission.Response {
	pod := &corev1.Pod{}
	if err := l.decoder.Decode(request, pod); err != nil {
		return admission.Errored(http.StatusBadRequest, err)
	}
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels["gohandler"] = "seen"
	changed, err := json.Marshal(pod)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	return admission.PatchResponseFromRaw(request.Object.Raw, changed)
}

func main() {
	port := flag.Int("port", 0, "port to listen on, on the loopback interface")
	certificates := flag.String("cert-dir", "", "directory with webhook.pem and webhook.key")
	flag.Parse()
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		panic(err)
	}
	server := webhook.NewServer(webhook.Options{
		Host: "127.0.0.1", Port: *port,
		CertDir: *certificates, CertName: "webhook.pem", KeyName: "webhook.key",
	})
	server.Register("/mutate", &webhook.Admission{Handler: label{admission.NewDecoder(scheme)}})
	if err := server.Start(signals.SetupSignalHandler()); err != nil {
		println(err.Error())
		os.Exit(1)
	}
}
