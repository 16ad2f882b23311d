// Package install tests what deploy installs: the Helm chart says the same as the overlays.
package install
