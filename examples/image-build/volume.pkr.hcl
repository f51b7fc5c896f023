# Copyright (c) 2026, the gpufleet.mig authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

packer {
  required_plugins {
    amazon = {
      source  = "github.com/hashicorp/amazon"
      version = "~> 1"
    }
    ansible = {
      source  = "github.com/hashicorp/ansible"
      version = "~> 1"
    }
  }
}

variable "base_image" {
  type        = string
  description = "Id of the image whose root volume is mounted and changed."
}

source "amazon-chroot" "gpu" {
  ami_name   = "gpu-{{timestamp}}"
  source_ami = var.base_image
}

build {
  sources = ["source.amazon-chroot.gpu"]

  # The host of the play is the folder in which the volume is mounted. There is no ssh, and systemd does not run in it.
  provisioner "ansible" {
    playbook_file  = "${path.root}/image.yml"
    inventory_file = "${build.MountPath},"
    extra_arguments = [
      "--connection=community.general.chroot",
    ]
  }
}
