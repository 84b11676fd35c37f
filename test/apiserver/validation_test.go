//go:build apiserver

package apiserver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// TestValidation has what the API server refuses, and what it says to write instead.
func TestValidation(t *testing.T) {
	const builtin = "model: {source: {builtin: {name: gocode-7m}}}"
	const folder = "model: {source: {hostPath: {path: /m/x}}}"
	spec := func(parts ...string) string {
		return "metadata: {name: s, namespace: default}\nspec:\n  " + strings.Join(parts, "\n  ")
	}
	for _, tt := range []struct {
		name, yaml string
		want       string // part of the refusal; "" when accepted
	}{
		{"smallest", spec(builtin), ""},
		{"no model", spec("replicas: 1"), "spec.model"},
		{"empty source", spec("model: {source: {}}"), "set exactly one of builtin, pvc, image, hostPath, huggingFace and s3"},
		{"two sources", spec("model: {source: {builtin: {name: gocode-7m}, hostPath: {path: /m}}}"), "set exactly one of builtin, pvc, image, hostPath, huggingFace and s3"},
		{"no source, and nothing of a draft", spec("model: {source: {}}"), "!EAGLE3 needs"},
		{"claim", spec("model: {source: {pvc: {claimName: models, path: llama/8b}}}", "speculation: {algorithm: None}"), ""},
		{"claim, absolute path", spec("model: {source: {pvc: {claimName: models, path: /llama}}}", "speculation: {algorithm: None}"), "write the path from the volume's root"},
		{"claim, path upwards", spec("model: {source: {pvc: {claimName: models, path: a/../..}}}", "speculation: {algorithm: None}"), "without '..'"},
		{"claim without draft", spec("model: {source: {pvc: {claimName: models}}}"), "set speculation.draft.source to it"},
		{"image volume", spec("model: {source: {image: {name: 'registry.test/m:1', path: llama}}}", "speculation: {algorithm: None}"), ""},
		{"hub and builtin", spec("model: {source: {builtin: {name: gocode-7m}, huggingFace: {repo: a/b}}}"), "set exactly one of"},
		{"unknown builtin", spec("model: {source: {builtin: {name: gpt}}}"), `supported values: "gocode-7m"`},
		{"relative path", spec("model: {source: {hostPath: {path: m/x}}}", "speculation: {algorithm: None}"), "write an absolute path without '..'"},
		{"path upwards", spec("model: {source: {hostPath: {path: /m/../etc}}}", "speculation: {algorithm: None}"), "write an absolute path without '..'"},
		{"dots in a name", spec("model: {source: {hostPath: {path: /m/a..b}}}", "speculation: {algorithm: None}"), ""},
		{"folder without draft", spec(folder), "set speculation.draft.source to it, or write speculation.algorithm: NGram or None"},
		{"folder with draft", spec(folder, "speculation: {draft: {source: {hostPath: {path: /d}}}}"), ""},
		{"folder, no speculation", spec(folder, "speculation: {algorithm: None}"), ""},
		{"draft without source", spec(folder, "speculation: {draft: {source: {}}}"), "set exactly one of builtin, pvc, image, hostPath, huggingFace and s3"},
		{"builtin draft", spec(builtin, "speculation: {draft: {source: {builtin: {name: gocode-7m-eagle3}}}}"), ""},
		{"algorithm unknown", spec(builtin, "speculation: {algorithm: NGRAM}"), `supported values: "EAGLE3", "NGram", "DraftModel", "None"`},
		{"n-grams", spec(folder, "speculation: {algorithm: NGram, numSteps: 5, nGram: {minMatchWindow: 3}}"), ""},
		{"n-grams with a draft", spec(folder, "speculation: {algorithm: NGram, draft: {source: {hostPath: {path: /d}}}}"), "leave topK and draft out"},
		{"n-grams in trees", spec(folder, "speculation: {algorithm: NGram, topK: 2}"), "leave topK and draft out"},
		{"n-grams crossed", spec(folder, "speculation: {algorithm: NGram, nGram: {minMatchWindow: 5, maxMatchWindow: 4}}"), "write minMatchWindow at most maxMatchWindow"},
		{"n-grams below the default", spec(folder, "speculation: {algorithm: NGram, nGram: {maxMatchWindow: 1}}"), "write minMatchWindow at most maxMatchWindow"},
		{"n-grams too long", spec(folder, "speculation: {algorithm: NGram, nGram: {maxMatchWindow: 65}}"), "less than or equal to 64"},
		{"n-grams of a head", spec(builtin, "speculation: {nGram: {minMatchWindow: 3}}"), "nGram is for algorithm NGram"},
		{"draft model", spec(folder, "speculation: {algorithm: DraftModel, draft: {source: {hostPath: {path: /d}}}}"), ""},
		{"draft model without one", spec(builtin, "speculation: {algorithm: DraftModel}"), "set draft.source to its files"},
		{"draft model that is a head", spec(builtin, "speculation: {algorithm: DraftModel, draft: {source: {builtin: {name: gocode-7m-eagle3}}}}"), "set draft.source to its files"},
		{"draft tokens fit", spec(builtin, "speculation: {numSteps: 5, topK: 1, numDraftTokens: 6}"), ""},
		{"draft tokens do not fit", spec(builtin, "speculation: {numSteps: 5, numDraftTokens: 5}"), "with topK 1, its default, numDraftTokens must be numSteps + 1"},
		{"draft tokens against the default", spec(builtin, "speculation: {numDraftTokens: 6}"), "leave numDraftTokens out, which means that"},
		{"trees", spec(builtin, "speculation: {topK: 4, numDraftTokens: 8}"), ""},
		{"trees of a draft model", spec(folder, "speculation: {algorithm: DraftModel, topK: 2, draft: {source: {hostPath: {path: /d}}}}"), ""},
		{"more tokens than nodes", spec(builtin, "speculation: {numSteps: 2, topK: 2, numDraftTokens: 8}"), "write at most 1 + topK + (numSteps - 1) * topK * topK"},
		{"as many tokens as nodes", spec(builtin, "speculation: {numSteps: 2, topK: 2, numDraftTokens: 7}"), ""},
		{"a tree too wide", spec(builtin, "speculation: {numSteps: 6, topK: 13}"), "write a smaller topK or numSteps"},
		{"too many tokens", spec(builtin, "speculation: {numSteps: 6, topK: 8, numDraftTokens: 65}"), "less than or equal to 64"},
		{"no steps", spec(builtin, "speculation: {numSteps: 0}"), "greater than or equal to 1"},
		{"too many steps", spec(builtin, "speculation: {numSteps: 17}"), "less than or equal to 16"},
		{"tensor 0", spec(builtin, "parallelism: {tensor: 0}"), "greater than or equal to 1"},
		{"tensor 65", spec(builtin, "parallelism: {tensor: 65}"), "less than or equal to 64"},
		{"nodes", spec(builtin, "parallelism: {tensor: 8, nodes: 4}"), ""},
		{"nodes that do not divide", spec(builtin, "parallelism: {tensor: 8, nodes: 3}"), "write a tensor that is a multiple of nodes"},
		{"GPUs of a node", spec(builtin, "resources: {limits: {nvidia.com/gpu: 2}}", "parallelism: {tensor: 8, nodes: 4}"), ""},
		{"GPUs of all nodes", spec(builtin, "resources: {limits: {nvidia.com/gpu: 8}}", "parallelism: {tensor: 8, nodes: 4}"), "divided by parallelism.nodes"},
		{"a flag of nodes", spec(builtin, "extraArgs: [--nnodes=2]"), "a flag that a field of this resource sets"},
		{"the nodes' secret", spec(builtin, "parallelism: {tensor: 8, nodes: 4, nodeSecretRef: {name: ranks, key: secret}}"), ""},
		{"the nodes' secret of one node", spec(builtin, "parallelism: {tensor: 8, nodeSecretRef: {name: ranks, key: secret}}"), "nodeSecretRef is for replicas of several nodes: set nodes above 1, or leave it out"},
		{"a flag of the nodes' secret", spec(builtin, "extraArgs: [--dist-secret-file=/x]", "parallelism: {tensor: 8, nodes: 4}"), "a flag that a field of this resource sets"},
		{"as many pods as the status holds", spec(builtin, "replicas: 31", "parallelism: {tensor: 64, nodes: 64}"), ""},
		{"more pods than the status holds", spec(builtin, "replicas: 32", "parallelism: {tensor: 64, nodes: 64}"), "at most 2000 pods"},
		{"more pods with an autoscaler", spec(builtin, "autoscaling: {maxReplicas: 32}", "parallelism: {tensor: 64, nodes: 64}"), "at most 2000 pods"},
		{"more pods with a surge", spec(builtin, "replicas: 1", "rollout: {maxSurge: 31}", "parallelism: {tensor: 64, nodes: 64}"), "at most 2000 pods"},
		{"a claim of one node for several", spec("model: {source: {huggingFace: {repo: a/b}}}", "speculation: {algorithm: None}", "modelCache: {template: {size: 1Gi}}", "parallelism: {tensor: 2, nodes: 2}"), "one node can mount a ReadWriteOnce claim"},
		{"negative replicas", spec(builtin, "replicas: -1"), "greater than or equal to 0"},
		{"context too short", spec("model: {source: {builtin: {name: gocode-7m}}, maxContextLength: 1}"), "greater than or equal to 16"},
		{"served name", spec("model: {source: {builtin: {name: gocode-7m}}, servedName: 'a b'}"), "spec.model.servedName"},
		{"channels", spec(builtin, "nccl: {minChannels: 2, maxChannels: 8}"), ""},
		{"channels crossed", spec(builtin, "nccl: {minChannels: 9, maxChannels: 8}"), "write minChannels at most maxChannels"},
		{"nccl protocol", spec(builtin, "nccl: {protocol: Fast}"), `supported values: "LL", "LL128", "Simple"`},
		{"env", spec(builtin, "extraEnv: [{name: NCCL_BUFFSIZE, value: '1'}, {name: OUTRIDER_SIMULATE_LOAD_RATE, value: '1'}, {name: EMPTY}]"), ""},
		{"env has a field, nccl", spec(builtin, "extraEnv: [{name: NCCL_PROTO, value: LL}]"), "NCCL_PROTO has a field of its own: set it under spec.nccl"},
		{"env has a field, model", spec(builtin, "extraEnv: [{name: OUTRIDER_MODEL, value: x}]"), "OUTRIDER_MODEL has a field of its own: set it under spec.model"},
		{"env has a field, tensor", spec(builtin, "extraEnv: [{name: OUTRIDER_TP_SIZE, value: '2'}]"), "set spec.parallelism.tensor"},
		{"env has a field, speculation", spec(builtin, "extraEnv: [{name: OUTRIDER_SPECULATIVE_NUM_STEPS, value: '2'}]"), "set it under spec.speculation"},
		{"env is the operator's", spec(builtin, "extraEnv: [{name: OUTRIDER_ADMIN_PORT, value: '2'}]"), "is set by the operator, which relies on it: leave it out"},
		{"env has a field, nodes", spec(builtin, "extraEnv: [{name: OUTRIDER_NNODES, value: '2'}]"), "OUTRIDER_NNODES follows from a field: set spec.parallelism.nodes"},
		{"env has a field, the nodes' secret", spec(builtin, "extraEnv: [{name: OUTRIDER_DIST_SECRET_FILE, value: /x}]"), "OUTRIDER_DIST_SECRET_FILE has a field of its own: set spec.parallelism.nodeSecretRef"},
		{"env of a LeaderWorkerSet", spec(builtin, "extraEnv: [{name: LWS_LEADER_ADDRESS, value: x}]"), "LWS_LEADER_ADDRESS follows from a field"},
		{"env has a field, nccl flag", spec(builtin, "extraEnv: [{name: OUTRIDER_NCCL_PROTOCOL, value: LL}]"), "set it under spec.nccl"},
		{"env name", spec(builtin, "extraEnv: [{name: A-B}]"), "spec.extraEnv[0].name"},
		{"env twice", spec(builtin, "extraEnv: [{name: A}, {name: A}]"), "Duplicate value"},
		{"nccl devices", spec(builtin, "nccl: {netDevices: [mlx5_0], socketInterface: eth0, extra: [{name: NCCL_BUFFSIZE, value: '1'}]}"), ""},
		{"nccl extra has a field", spec(builtin, "nccl: {extra: [{name: NCCL_ALGO, value: Ring}]}"), "NCCL_ALGO has a field of its own: set that"},
		{"nccl extra, another prefix", spec(builtin, "nccl: {extra: [{name: PATH, value: x}]}"), "spec.nccl.extra[0].name"},
		{"nccl twice", spec(builtin, "nccl: {extra: [{name: NCCL_BUFFSIZE}]}", "extraEnv: [{name: NCCL_BUFFSIZE}]"), "leave it out of extraEnv"},
		{"cache", spec(builtin, "kvCache: {memoryFraction: '0.85', pageSize: 32, maxTokens: 100000, dtype: Auto}"), ""},
		{"cache, all", spec(builtin, "kvCache: {memoryFraction: '1'}"), ""},
		{"cache, none", spec(builtin, "kvCache: {memoryFraction: '0.0'}"), "write a share above 0 and up to 1"},
		{"cache, too much", spec(builtin, "kvCache: {memoryFraction: '1.1'}"), "write a share above 0 and up to 1"},
		{"request above limit", spec(builtin, "resources: {requests: {memory: 2Gi}, limits: {memory: 1500Mi}}"), "a request is above its limit"},
		{"request up to limit", spec(builtin, "resources: {requests: {memory: 1Gi, cpu: 1}, limits: {memory: 1024Mi, cpu: '1.5'}}"), ""},
		{"GPUs", spec(builtin, "resources: {limits: {nvidia.com/gpu: 2}}", "parallelism: {tensor: 2}", "device: CUDA"), ""},
		{"GPUs as a string", spec(builtin, "resources: {requests: {nvidia.com/gpu: '1'}, limits: {nvidia.com/gpu: '1'}}"), ""},
		{"GPUs for other ranks", spec(builtin, "resources: {limits: {nvidia.com/gpu: 4}}", "parallelism: {tensor: 2}"), "with the number of parallelism.tensor"},
		{"GPUs requested only", spec(builtin, "resources: {requests: {nvidia.com/gpu: 1}}"), "write nvidia.com/gpu and the like under limits"},
		{"CUDA without GPUs", spec(builtin, "device: CUDA"), "device CUDA needs GPUs"},
		{"another device", spec(builtin, "device: TPU"), `supported values: "Auto", "CPU", "CUDA"`},
		{"scheduling", spec(builtin, "scheduling: {nodeSelector: {a: b}, nodeAffinity: [{key: k, operator: In, values: [v]}, {key: k, operator: Exists, weight: 3}], tolerations: [{operator: Exists}], topologySpread: [{topologyKey: z}]}"), ""},
		{"rule without values", spec(builtin, "scheduling: {nodeAffinity: [{key: k, operator: In}]}"), "In, NotIn, Gt and Lt need values"},
		{"toleration of nothing", spec(builtin, "scheduling: {tolerations: [{operator: Equal, value: x}]}"), "write operator: Exists"},
		{"toleration with a value", spec(builtin, "scheduling: {tolerations: [{key: k, operator: Exists, value: x}]}"), "leave value out"},
		{"spread twice", spec(builtin, "scheduling: {topologySpread: [{topologyKey: z}, {topologyKey: z}]}"), "Duplicate value"},
		{"pod labels", spec(builtin, "podMetadata: {labels: {team: a}, annotations: {x: z}}"), ""},
		{"pod labels of the operator", spec(builtin, "podMetadata: {labels: {inference.outrider.dev/revision: a}}"), "are the operator's: leave them out"},
		{"service", spec(builtin, "service: {type: NodePort, port: 80, headless: Enabled}"), ""},
		{"service type", spec(builtin, "service: {type: ExternalName}"), `supported values`},
		{"keys", spec(builtin, "security: {apiKeySecretRef: {name: keys, key: keys.txt}, runAsUser: 1000, fsGroup: 1000}"), ""},
		{"root", spec(builtin, "security: {runAsUser: 0}"), "greater than or equal to 1"},
		{"around", spec(builtin, "networkPolicy: {}", "monitoring: {}", "disruption: {}"), ""},
		{"policy", spec(builtin, "networkPolicy: {clients: [{namespaceLabels: {a: b}}], scrapers: [{namespaceLabels: {a: b}, podLabels: {a: b}}]}"), ""},
		{"peer of no one", spec(builtin, "networkPolicy: {clients: [{}]}"), "namespaceLabels"},
		{"budget that blocks", spec(builtin, "disruption: {maxUnavailable: 0}"), "greater than or equal to 1"},
		{"args", spec(builtin, "extraArgs: ['--max-running-requests=64', '--admin-only']"), ""},
		{"args without dashes", spec(builtin, "extraArgs: [serve]"), "write each flag as --name=value"},
		{"args with a space", spec(builtin, "extraArgs: ['--max-running-requests 64']"), "write each flag as --name=value"},
		{"args of several lines", spec(builtin, "extraArgs: [\"--chat-template=a\\nb\"]"), ""},
		{"args have a field", spec(builtin, "extraArgs: ['--tp-size=2']"), "a flag that a field of this resource sets"},
		{"args have a field, nccl", spec(builtin, "extraArgs: ['--nccl-protocol=LL']"), "a flag that a field of this resource sets"},
		{"args have a field, speculation", spec(builtin, "extraArgs: ['--speculative-mode=auto']"), "a flag that a field of this resource sets"},
		{"volumes", spec(builtin, "extraVolumes: [{name: a, mountPath: /a, emptyDir: {sizeLimit: 1Gi}}, {name: b, mountPath: /b, configMap: c}, {name: c, mountPath: /c, pvc: {claimName: c}}]"), ""},
		{"volume of nothing", spec(builtin, "extraVolumes: [{name: a, mountPath: /a}]"), "set exactly one of emptyDir"},
		{"volume of two", spec(builtin, "extraVolumes: [{name: a, mountPath: /a, configMap: c, secret: s}]"), "set exactly one of emptyDir"},
		{"volume over the model", spec(builtin, "extraVolumes: [{name: a, mountPath: /models/target, configMap: c}]"), "that is not in /tmp, /models"},
		{"volume over the operator's", spec(builtin, "extraVolumes: [{name: a, mountPath: /var/run/outrider/admin, emptyDir: {}}]"), "/sys or /var/run/outrider"},
		{"volume over all of the operator's", spec(builtin, "extraVolumes: [{name: a, mountPath: /var/run/outrider, emptyDir: {}}]"), "/sys or /var/run/outrider"},
		{"volume beside the operator's", spec(builtin, "extraVolumes: [{name: a, mountPath: /var/run/outrider-x, emptyDir: {}}]"), ""},
		{"volume over /tmp by a detour", spec(builtin, "extraVolumes: [{name: a, mountPath: /./tmp, emptyDir: {}}]"), "without '.', '..', '//', ':' and '/' at its end"},
		{"volume over the admin token by a detour", spec(builtin, "extraVolumes: [{name: a, mountPath: /var//run/outrider/admin, emptyDir: {}}]"), "without '.', '..', '//', ':' and '/' at its end"},
		{"env from a secret", spec(builtin, "extraEnv: [{name: A, secretKeyRef: {name: s, key: k}}]"), ""},
		{"env twice over", spec(builtin, "extraEnv: [{name: A, value: x, secretKeyRef: {name: s, key: k}}]"), "write value or secretKeyRef, not both"},
		{"env has a field, cache", spec(builtin, "extraEnv: [{name: OUTRIDER_PAGE_SIZE, value: '8'}]"), "set it under spec.kvCache"},
		{"env has a field, others", spec(builtin, "extraEnv: [{name: OUTRIDER_STALL_TIMEOUT, value: 8s}]"), "spec.health.stallTimeoutSeconds"},
		{"two volumes in one place", spec(builtin, "extraVolumes: [{name: a, mountPath: /a, emptyDir: {}}, {name: b, mountPath: /a, emptyDir: {}}]"), "two volumes have one mountPath"},
		{"two volumes, one in the other", spec(builtin, "extraVolumes: [{name: a, mountPath: /a, emptyDir: {}}, {name: b, mountPath: /a/b, emptyDir: {}}]"), ""},
		{"two volumes of one name", spec(builtin, "extraVolumes: [{name: a, mountPath: /a, emptyDir: {}}, {name: a, mountPath: /b, emptyDir: {}}]"), "Duplicate value"},
		{"volumes of the operator's names", spec("model: {source: {s3: {uri: 's3://models/llama', credentialsSecretRef: {name: c, key: k}}}}", "speculation: {algorithm: None}", "parallelism: {tensor: 2}", "extraVolumes: [{name: tmp, mountPath: /a, emptyDir: {}}, {name: shm, mountPath: /b, emptyDir: {}}, {name: cache, mountPath: /c, emptyDir: {}}, {name: admin-token, mountPath: /d, emptyDir: {}}, {name: s3-credentials, mountPath: /e, emptyDir: {}}]"), ""},
		{"volume over what the operator's is in", spec(builtin, "extraVolumes: [{name: a, mountPath: /var/run, configMap: c}]"), "and not /var, /var/run or /run"},
		{"volume with a colon", spec(builtin, "extraVolumes: [{name: a, mountPath: '/a:b', emptyDir: {}}]"), "without '.', '..', '//', ':' and '/' at its end"},
		{"volume of a ConfigMap without a name", spec(builtin, "extraVolumes: [{name: a, mountPath: /a, configMap: ''}]"), "configMap"},
		{"volume of no size", spec(builtin, "extraVolumes: [{name: a, mountPath: /a, emptyDir: {sizeLimit: -1Gi}}]"), "sizeLimit is below 0"},
		{"variable with no key", spec(builtin, "extraEnv: [{name: A, secretKeyRef: {name: s, key: ..}}]"), "has no '..' first"},
		{"no such resource", spec(builtin, "resources: {limits: {gpu: 1}}"), "a device as vendor/name"},
		{"a resource of Kubernetes", spec(builtin, "resources: {limits: {kubernetes.io/gpu: 1}}"), "a device as vendor/name"},
		{"less than nothing", spec(builtin, "resources: {limits: {memory: -1Gi}}"), "write 0 or more"},
		{"half a GPU", spec(builtin, "resources: {limits: {nvidia.com/gpu: '0.5'}}"), "write a whole number"},
		{"huge pages", spec(builtin, "resources: {limits: {hugepages-2Mi: 64Mi, memory: 1Gi}}"), ""},
		{"huge pages alone", spec(builtin, "resources: {limits: {hugepages-2Mi: 64Mi}}"), "huge pages come beside cpu or memory"},
		{"huge pages overcommitted", spec(builtin, "resources: {requests: {hugepages-2Mi: 32Mi}, limits: {hugepages-2Mi: 64Mi, memory: 1Gi}}"), "cannot be overcommitted"},
		{"label key", spec(builtin, "podMetadata: {labels: {'a b': c}}"), "a label's key is no key"},
		{"label value", spec(builtin, "podMetadata: {labels: {a: b c}}"), "spec.podMetadata.labels.a"},
		{"annotation key", spec(builtin, "podMetadata: {annotations: {'a b': c}}"), "an annotation's key is no key"},
		{"a long annotation", spec(builtin, "podMetadata: {annotations: {a: "+strings.Repeat("x", 4097)+"}}"), "may not be more than 4096"},
		{"annotation key of a Service", spec(builtin, "service: {annotations: {'a b': c}}"), "an annotation's key is no key"},
		{"node selector key", spec(builtin, "scheduling: {nodeSelector: {'a b': c}}"), "a label's key is no key"},
		{"node selector value", spec(builtin, "scheduling: {nodeSelector: {a: b/c}}"), "spec.scheduling.nodeSelector.a"},
		{"rule key", spec(builtin, "scheduling: {nodeAffinity: [{key: a b, operator: Exists}]}"), "spec.scheduling.nodeAffinity[0].key"},
		{"rule of two numbers", spec(builtin, "scheduling: {nodeAffinity: [{key: a, operator: Gt, values: ['1', '2']}]}"), "write it as the only value"},
		{"rule of no number", spec(builtin, "scheduling: {nodeAffinity: [{key: a, operator: Lt, values: [x]}]}"), "write it as the only value"},
		{"toleration seconds", spec(builtin, "scheduling: {tolerations: [{key: a, operator: Exists, tolerationSeconds: 5}]}"), "write effect: NoExecute"},
		{"toleration seconds of an eviction", spec(builtin, "scheduling: {tolerations: [{key: a, operator: Exists, effect: NoExecute, tolerationSeconds: 5}]}"), ""},
		{"spread key", spec(builtin, "scheduling: {topologySpread: [{topologyKey: a b}]}"), "spec.scheduling.topologySpread[0].topologyKey"},
		{"spread mode", spec(builtin, "scheduling: {topologySpread: [{topologyKey: a, whenUnsatisfiable: Never}]}"), "supported values"},
		{"priority class", spec(builtin, "scheduling: {priorityClassName: A_b}"), "spec.scheduling.priorityClassName"},
		{"service account", spec(builtin, "security: {serviceAccountName: A_b}"), "spec.security.serviceAccountName"},
		{"a user beyond Kubernetes'", spec(builtin, "security: {runAsUser: 2147483648}"), "less than or equal to 2147483647"},
		{"peer's labels", spec(builtin, "networkPolicy: {clients: [{namespaceLabels: {'a b': c}}]}"), "a label's key is no key"},
		{"monitor's labels", spec(builtin, "monitoring: {labels: {'a b': c}}"), "a label's key is no key"},
		{"a gateway twice", spec(builtin, "routing: {httpRoute: {gateways: [{name: g}, {name: g}]}}"), "a gateway is there twice"},
		{"two listeners of a gateway", spec(builtin, "routing: {httpRoute: {gateways: [{name: g, sectionName: a}, {name: g, sectionName: b}]}}"), ""},
		{"a gateway and a listener of it", spec(builtin, "routing: {httpRoute: {gateways: [{name: g, sectionName: a}, {name: g}]}}"), "a gateway is there twice"},
		{"gateways of two namespaces", spec(builtin, "routing: {httpRoute: {gateways: [{name: g, namespace: a}, {name: g, namespace: b}]}}"), ""},
		{"adaptation", spec(builtin, "speculation: {adaptation: {mode: Auto, minSteps: 1, maxSteps: 3, objective: Latency, maxInterTokenMilliseconds: 50}, onDraftFailure: Fail}"), ""},
		{"bounds of the default mode, which is Auto", spec(builtin, "speculation: {adaptation: {maxSteps: 2}}"), ""},
		{"adaptation off", spec(builtin, "speculation: {adaptation: {mode: 'Off'}}"), ""},
		{"plain decoding with what drafts would have", spec(builtin, "speculation: {algorithm: None, numSteps: 5, topK: 4, numDraftTokens: 8, adaptation: {mode: Fixed}, onDraftFailure: Fail}"), ""},
		{"bounds crossed", spec(builtin, "speculation: {adaptation: {mode: Auto, minSteps: 3, maxSteps: 2}}"), "write minSteps at most maxSteps"},
		{"bounds above numSteps", spec(builtin, "speculation: {numSteps: 2, adaptation: {mode: Auto, maxSteps: 3}}"), "raise numSteps, or lower adaptation.maxSteps"},
		{"least depth above numSteps", spec(builtin, "speculation: {numSteps: 2, adaptation: {mode: Auto, minSteps: 3}}"), "raise numSteps, or lower adaptation.minSteps"},
		{"bounds without auto", spec(builtin, "speculation: {adaptation: {mode: Fixed, maxSteps: 2}}"), "write mode: Auto, or leave them out"},
		{"surge alone", spec(builtin, "rollout: {maxSurge: 1}"), ""},
		{"none missing, no surge", spec(builtin, "rollout: {maxUnavailable: 0}"), "write maxSurge: 1, or leave maxUnavailable out"},
		{"none missing, surge", spec(builtin, "rollout: {maxUnavailable: 0, maxSurge: 2}"), ""},
		{"short load budget", spec(builtin, "rollout: {loadBudgetSeconds: 59}"), "greater than or equal to 60"},
		{"health", spec(builtin, "health: {deepProbe: {intervalSeconds: 5, timeoutSeconds: 1}, stallTimeoutSeconds: 5, crashBudget: 0}"), ""},
		{"image with a space", spec(builtin, "image: 'a b'"), "spec.image"},
		{"pull policy", spec(builtin, "imagePullPolicy: Sometimes"), `supported values: "Always", "IfNotPresent", "Never"`},
		{"quantity", spec(builtin, "resources: {limits: {memory: lots}}"), "spec.resources.limits"},
		{"quantity with an exponent", spec(builtin, "resources: {limits: {memory: 16e9, cpu: '+1E+1'}}"), ""},
		{"nothing below 0", spec(builtin, "resources: {limits: {memory: '-0'}}", "extraVolumes: [{name: a, mountPath: /a, emptyDir: {sizeLimit: '-0'}}]"), ""},
		{"quantity below 0", spec(builtin, "resources: {limits: {memory: '-0.01'}}"), "a quantity is below 0: write 0 or more"},
		{"unknown field", spec(builtin, "replica: 2"), `unknown field "spec.replica"`},
		{"name too long", strings.Replace(spec(builtin), "name: s", "name: "+strings.Repeat("s", 53), 1), "write at most 52 of a-z"},
		{"name of several nodes", strings.Replace(spec(builtin, "parallelism: {tensor: 2, nodes: 2}"), "name: s", "name: "+strings.Repeat("s", 42), 1), ""},
		{"name of several nodes too long", strings.Replace(spec(builtin, "parallelism: {tensor: 2, nodes: 2}"), "name: s", "name: "+strings.Repeat("s", 43), 1), "write at most 42 characters"},
		{"name of one node", strings.Replace(spec(builtin, "parallelism: {tensor: 2, nodes: 1}"), "name: s", "name: "+strings.Repeat("s", 52), 1), ""},
		{"name with a dot", strings.Replace(spec(builtin), "name: s", "name: a.b", 1), "a letter first"},
		{"name with a digit first", strings.Replace(spec(builtin), "name: s", "name: 1a", 1), "a letter first"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			u := &unstructured.Unstructured{}
			text := "apiVersion: inference.outrider.dev/v1alpha1\nkind: SpeculativeServer\n" + tt.yaml
			if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
				t.Fatal(err)
			}
			err := k8s.Create(t.Context(), u, client.DryRunAll, client.FieldValidation("Strict"))
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tt.want == "":
				makes(t, u)
			case err == nil:
				t.Errorf("accepted; want a refusal with %q", tt.want)
			case !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err):
				t.Errorf("%v: not a refusal", err)
			case strings.HasPrefix(tt.want, "!"): // what it must not say besides
				if strings.Contains(err.Error(), tt.want[1:]) {
					t.Errorf("refusal %v\nhas %q, which is not the fault", err, tt.want[1:])
				}
			case !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(tt.want)):
				t.Errorf("refusal %v\nlacks %q", err, tt.want)
			}
		})
	}
}

// TestOneFault: a value that is wrong by itself is one line of the refusal, and no rule
// about it beside others adds another.
func TestOneFault(t *testing.T) {
	const builtin = "model: {source: {builtin: {name: gocode-7m}}}"
	const hub = "model: {source: {huggingFace: {repo: a/b}}}"
	faults := map[string][]string{
		"numSteps":       {builtin, "speculation: {numSteps: 100}"},
		"numSteps below": {builtin, "speculation: {numSteps: 0, topK: 2, numDraftTokens: 4}"},
		"topK":           {builtin, "speculation: {topK: 100}"},
		"topK below":     {builtin, "speculation: {topK: 0, numDraftTokens: 4}"},
		"numDraftTokens": {builtin, "speculation: {topK: 2, numDraftTokens: 100}"},
	}
	// What no parser of quantities takes must be refused wherever one is: an object with it
	// cannot be read, and no list that it is in.
	for _, text := range []string{"lots", "1e1.5", "1e.5", "1E-1.", "1e99999999999999999999"} {
		for name, parts := range map[string][]string{
			"memory":           {builtin, "resources: {limits: {memory: %q}}"},
			"memory of both":   {builtin, "resources: {requests: {memory: 1Gi}, limits: {memory: %q}}"},
			"requested memory": {builtin, "resources: {requests: {memory: %q}, limits: {memory: 1Gi}}"},
			"memory asked for": {builtin, "resources: {requests: {memory: %q}}"},
			"CPUs":             {builtin, "resources: {limits: {cpu: %q}}"},
			"a folder":         {builtin, "resources: {limits: {ephemeral-storage: %q}}"},
			"GPUs":             {builtin, "resources: {limits: {nvidia.com/gpu: %q}}"},
			"other devices":    {builtin, "resources: {limits: {example.com/nic: %q}}"},
			"a cache's size":   {hub, "speculation: {algorithm: None}", "modelCache: {template: {size: %q}}"},
			"a volume's size":  {builtin, "extraVolumes: [{name: a, mountPath: /a, emptyDir: {sizeLimit: %q}}]"},
			"an average":       {builtin, "autoscaling: {maxReplicas: 2, metrics: [{source: Pods, name: m, averageValue: %q}]}"},
		} {
			parts = slices.Clone(parts)
			parts[len(parts)-1] = fmt.Sprintf(parts[len(parts)-1], text)
			faults[name+" "+text] = parts
		}
	}
	for name, parts := range faults {
		t.Run(name, func(t *testing.T) {
			u := &unstructured.Unstructured{}
			text := "apiVersion: inference.outrider.dev/v1alpha1\nkind: SpeculativeServer\nmetadata: {name: s, namespace: default}\nspec:\n  " + strings.Join(parts, "\n  ")
			if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
				t.Fatal(err)
			}
			var refused *apierrors.StatusError
			if err := k8s.Create(t.Context(), u, client.DryRunAll, client.FieldValidation("Strict")); !errors.As(err, &refused) || refused.ErrStatus.Details == nil {
				t.Fatalf("%v: not a refusal", err)
			}
			if causes := refused.ErrStatus.Details.Causes; len(causes) != 1 {
				t.Errorf("%d lines: %v", len(causes), causes)
			}
		})
	}
}

// TestSamples has the API server take each sample.
func TestSamples(t *testing.T) {
	files, err := filepath.Glob("../../config/samples/*.yaml")
	more, e := filepath.Glob("../../config/samples/*/*.yaml")
	if files = append(files, more...); errors.Join(err, e) != nil || len(files) < 9 {
		t.Fatalf("%v, %v", files, errors.Join(err, e))
	}
	for _, file := range files {
		switch filepath.Base(file) {
		case "kustomization.yaml", "keda.yaml": // of kinds that this API server does not have
			continue
		}
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(b, &u.Object); err != nil {
			t.Fatal(err)
		}
		if u.GetNamespace() == "" {
			u.SetNamespace("default")
		}
		if err := k8s.Create(t.Context(), u, client.DryRunAll, client.FieldValidation("Strict")); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// TestDefaults has what the API server fills in.
func TestDefaults(t *testing.T) {
	p := begin(t)
	p.create(manifest)
	got, err := yaml.Marshal(p.server().Spec)
	if err != nil {
		t.Fatal(err)
	}
	const want = `imagePullPolicy: IfNotPresent
model:
  source:
    builtin:
      name: gocode-7m
parallelism:
  tensor: 1
replicas: 1
speculation:
  algorithm: EAGLE3
  numSteps: 3
  topK: 1
`
	if string(got) != want {
		t.Errorf("the spec became\n%s\nwant\n%s", got, want)
	}
}

// TestFlagsHaveFields: no flag that the operator gives the engine can be given
// again, neither as an argument nor as a variable.
func TestFlagsHaveFields(t *testing.T) {
	all, err := os.ReadFile(filepath.Join("..", "..", "controllers", "speculativeserver", "build", "testdata", "all-pod.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var pod corev1.Pod
	if err := yaml.Unmarshal(all, &pod); err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, arg := range pod.Spec.Containers[0].Args {
		flag, _, ok := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if !ok || flag == "max-running-requests" || flag == "log-level" { // those are its extraArgs
			continue
		}
		if flag == "metrics-compat" { // also for an endpoint picker whose pool is not the operator's; twice is once
			continue
		}
		n++
		variable := "OUTRIDER_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
		for _, extra := range []string{"extraArgs: ['--" + flag + "=1']", "extraEnv: [{name: " + variable + ", value: '1'}]"} {
			u := &unstructured.Unstructured{}
			text := "apiVersion: inference.outrider.dev/v1alpha1\nkind: SpeculativeServer\nmetadata: {name: s, namespace: default}\nspec:\n  model: {source: {builtin: {name: gocode-7m}}}\n  " + extra
			if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
				t.Fatal(err)
			}
			if err := k8s.Create(t.Context(), u, client.DryRunAll); !apierrors.IsInvalid(err) {
				t.Errorf("%s: %v, want a refusal", extra, err)
			}
		}
	}
	if n < 15 {
		t.Errorf("only %d flags were tried", n)
	}
}

// TestCRDSize: kubectl apply keeps the whole object in an annotation of at most
// 262,144 bytes.
func TestCRDSize(t *testing.T) {
	info, err := os.Stat(filepath.Join("..", "..", "config", "crd", "inference.outrider.dev_speculativeservers.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > 200_000 {
		t.Errorf("the CRD has %d bytes, more than 200,000", info.Size())
	}
}
